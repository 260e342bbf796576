"""The estimated cost of a compile run, and the budget that limits this cost."""

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import dspy

from plr_dspy.compiling.plan import Plan
from plr_dspy.compiling.rounds import MAX_LOW
from plr_dspy.errors import UserError
from plr_dspy.labels.outputs import label_output
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.instructions import PLACEHOLDER
from plr_dspy.programs.prefixes import NEW_SHARE
from plr_dspy.programs.rivals import Rival
from plr_dspy.programs.slots import PoolSlots, messages_of
from plr_dspy.programs.tokens import Messages, token_counter
from plr_dspy.report.formats import count, dollars
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.scoring.budget import Budget, cost_of, price_of
from plr_dspy.scoring.run_log import RunLog
from plr_dspy.search.space import Candidate

SAMPLED_PROMPTS = 20  # maximum number of examples over which prompt tokens are averaged
BOOTSTRAP_SHARE = 0.25  # maximum share of max_seconds and max_cost for bootstrapping
# The approximate size of a proposal.
CALLS_PER_PROPOSAL = 3  # number of prompt-model calls
EXAMPLES_PER_PROPOSAL = 5  # number of examples in each prompt
PROPOSAL_PROMPT = 500  # number of tokens in each prompt, not counting the examples
PROPOSAL_REPLY = 200  # number of tokens in each reply


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a compile run. As a string, it has two lines, plus a line for any warning.

    Attributes:
        program_calls: Maximum number of program calls in all phases.
        bootstrap_calls: Number of program calls that bootstrap demos before the search.
        proposal_calls: Approximate number of prompt-model calls that propose instructions.
            `program_calls` does not include them.
        plan: The plan for the search and all later phases, with the number of program calls in
            each phase.
        prompt_tokens: Approximate number of tokens in all prompts, counted with GPT-4o's
            tokenizer. If there are several instructions to choose from, their mean length is
            used. None if prompts cannot be built.
        cost: Approximate cost in US dollars at litellm's list prices, if answers are as long
            as in the demos. It ignores hidden reasoning tokens and `max_cost`. None if a price
            is unknown, or if the metric calls a language model.
        affordable_calls: Approximate number of calls that `max_cost` covers, which is the number
            of all calls without `max_cost`. None if `cost` is None.
        new_prompt_tokens: Approximate number of prompt tokens that a server with a prefix cache
            must read, if the cache holds only the previous prompt. None if prompts cannot be
            built.
        cost_with_cache: Approximate cost if all prompt tokens except `new_prompt_tokens` are
            billed as cached tokens. None if cached tokens have no listed price.
        warning: A warning that prompts may exceed a model's context window. Empty if no prompt
            is too long, or if litellm does not know the size of the window.
    """

    program_calls: int
    bootstrap_calls: int
    plan: Plan
    prompt_tokens: int | None
    cost: float | None
    affordable_calls: int | None
    proposal_calls: int = 0
    new_prompt_tokens: int | None = None
    cost_with_cache: float | None = None
    warning: str = ""

    def __str__(self) -> str:
        text = f"at most {count(self.program_calls, 'program call')}"
        if self.proposal_calls:
            text += f" and about {self.proposal_calls:,} calls to the prompt model"
        if self.prompt_tokens is not None:
            text += f", about {self.prompt_tokens:,} prompt tokens"
        if self.new_prompt_tokens is not None:
            text += f" ({self.new_prompt_tokens:,} not cached with a prefix cache)"
        if self.cost is not None:
            text += f", about {dollars(self.cost)} (if answers are as long as in the demos)"
        if self.cost_with_cache is not None:
            text += f", or {dollars(self.cost_with_cache)} with a prefix cache"
        if self.affordable_calls is not None and self.affordable_calls < self.program_calls:
            text += f"; max_cost ends the run after about {count(self.affordable_calls, 'call')}"
        plan = self.plan
        phases = {
            "bootstrapped demos": self.bootstrap_calls,
            "search": plan.program_calls - plan.race_calls - plan.comparison_calls,
            "race": plan.race_calls,
            "final comparison": plan.comparison_calls,
        }
        calls = ", ".join(f"{phase} {number:,}" for phase, number in phases.items() if number > 0)
        text += f"\n  calls: {calls or 'none'}"
        return f"{text}\nwarning: {self.warning}" if self.warning else text


def estimate_cost(setup: CompileSetup, candidates: Sequence[Candidate] = ()) -> Estimate:
    """Estimate the cost of a compile run, including the calls that bootstrap demos.

    If candidates are passed, use the mean size of their calls.
    """
    plan = setup.plan
    num_attempts = len(setup.attempts)
    num_calls = plan.program_calls + num_attempts
    if not num_calls:
        return Estimate(0, 0, plan, 0, 0.0, 0)
    if not candidates:
        size = size_of_call(setup)
    else:
        candidate_sizes = [size_of_call(setup, candidate=candidate) for candidate in candidates]
        mean_tokens = _mean([candidate_size.tokens for candidate_size in candidate_sizes])
        mean_cost = _mean([candidate_size.cost for candidate_size in candidate_sizes])
        size = CallSize(mean_tokens, mean_cost)
    call_cost = size.cost
    teacher_cost = call_cost
    if setup.teacher is not None and num_attempts:
        teacher_cost = size_of_call(setup, setup.teacher).cost
    cost_of_instructions = cost_of_proposals(setup)
    cost = None
    cost_with_cache = None
    affordable_calls = None
    if call_cost is not None and teacher_cost is not None and cost_of_instructions is not None:
        cost_of_calls = call_cost * plan.program_calls + teacher_cost * num_attempts
        cost = cost_of_calls + cost_of_instructions
        if size.saved_by_cache:
            cost_with_cache = cost - size.saved_by_cache * plan.program_calls
        affordable_calls = num_calls
        max_cost = setup.options.max_cost
        if max_cost is not None and cost > max_cost:
            affordable_calls = max(0, int(num_calls * (max_cost - cost_of_instructions) / cost_of_calls))
    return Estimate(
        program_calls=num_calls,
        bootstrap_calls=num_attempts,
        plan=plan,
        prompt_tokens=None if size.tokens is None else round(num_calls * size.tokens),
        cost=cost,
        affordable_calls=affordable_calls,
        proposal_calls=CALLS_PER_PROPOSAL * len(setup.proposals) + num_revisions(setup),
        new_prompt_tokens=None if size.new_tokens is None else round(num_calls * size.new_tokens),
        cost_with_cache=cost_with_cache,
    )


def num_revisions(setup: CompileSetup) -> int:
    """Return the maximum number of instructions proposed during the search. Each takes one prompt-model call."""
    return len(setup.slots.alternatives) if setup.proposals else 0


def cost_of_proposals(setup: CompileSetup) -> float | None:
    """Return the approximate cost of all proposals in US dollars, or None if the prompt model's price is unknown."""
    if not setup.proposals:
        return 0.0
    early = cost_of_prompt(setup, EXAMPLES_PER_PROPOSAL)
    late = cost_of_prompt(setup, MAX_LOW)
    if early is None or late is None:
        return None
    return CALLS_PER_PROPOSAL * len(setup.proposals) * early + num_revisions(setup) * late


def cost_of_prompt(setup: CompileSetup, num_examples: int) -> float | None:
    """Return the approximate cost of one prompt-model call in US dollars, or None if the model's price is unknown.

    The prompt is assumed to show `num_examples` examples.
    """
    model = setup.prompt_model or dspy.settings.lm
    num_tokens = token_counter()
    examples = [
        {"role": "user", "content": repr(example)} for example in setup.scored_examples[:num_examples]
    ]
    sizes = {
        "prompt_tokens": float(PROPOSAL_PROMPT + num_tokens(examples)),
        "completion_tokens": float(PROPOSAL_REPLY),
    }
    return cost_of({str(model.model): sizes})


class CallSize(NamedTuple):
    """The mean number of prompt tokens and the mean cost of a program call."""

    tokens: float | None  # number of tokens in all prompts of the call; None if prompts cannot be built
    # The cost in US dollars. It is None if a price or the length of answers is unknown, or if the
    # metric calls a language model.
    cost: float | None
    new_tokens: float | None = None  # number of prompt tokens that are not in a server's prefix cache
    saved_by_cache: float = 0.0  # part of `cost` that is saved if all other prompt tokens are cached


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values, or None if any of them is None."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def size_of_call(
    setup: CompileSetup,
    teacher: dspy.Module | None = None,
    *,
    rival: Rival | None = None,
    candidate: Candidate | None = None,
) -> CallSize:
    """Estimate the size of a program call, assuming that answers are as long as in the demos.

    The program is the teacher, rival or candidate that is passed. By default, the program is
    the student with about half of the demos.
    """
    examples = setup.scored_examples[:SAMPLED_PROMPTS]
    num_tokens = token_counter()
    tokens: dict[str, Any] = defaultdict(Counter)
    new_tokens: dict[str, float] = defaultdict(float)  # number of uncached tokens, keyed by model
    calls_per_look = setup.plan.program_calls / max(1, setup.plan.num_looks)
    # `LookSizes` limits the uncached tokens of demos, unless the search learns from
    # log-probabilities. A program without a label output has no such log-probabilities.
    limits_looks = isinstance(setup.slots, PoolSlots) and isinstance(label_output(setup.program), str)
    try:
        if rival is not None:
            program = rival.program
        else:
            program = setup.slots.build(setup.slots.showing(0.5) if candidate is None else candidate)
        models = [predictor.lm or dspy.settings.lm for predictor in (teacher or program).predictors()]
        extra_tokens: dict[str, float] = {}
        if teacher is None and candidate is None:
            extra_tokens = {name: fmean(lengths) for name, lengths in extra_instruction_tokens(setup).items()}
        for example in examples:
            for (name, predictor), lm in zip(program.named_predictors(), models, strict=False):
                messages = _prompt_of(predictor, example)
                answers = _answers(messages)
                if not answers and candidate is not None:
                    # Assume that a candidate without demos answers as briefly as the example.
                    answers = _answers(messages_of(predictor, [example]))
                prompt_tokens = num_tokens(messages) + extra_tokens.get(name, 0.0)
                sizes = {"prompt_tokens": prompt_tokens, "completion_tokens": math.nan}
                if answers:
                    sizes["completion_tokens"] = num_tokens(answers) / len(answers)
                tokens[str(lm.model)].update(sizes)
                without_demos = messages_of(predictor, [], inputs_of(predictor, example))
                question_tokens = num_tokens(without_demos[-1:])
                demo_tokens = (prompt_tokens - num_tokens(without_demos)) / max(1.0, calls_per_look)
                if limits_looks:
                    demo_tokens = min(demo_tokens, NEW_SHARE * question_tokens)
                new_tokens[str(lm.model)] += question_tokens + max(0.0, demo_tokens)
    except Exception:  # The adapter or litellm may fail; the other figures are still useful.
        return CallSize(None, None)
    cost = cost_of(tokens)
    saved = 0.0
    if cost is None or math.isnan(cost) or language_models(setup.options.metric):
        cost = None
    else:
        for model, sizes in tokens.items():
            sizes["cached_tokens"] = max(0.0, sizes["prompt_tokens"] - new_tokens[model])
        saved = (cost - (cost_of(tokens) or 0.0)) / len(examples)
        cost /= len(examples)
    return CallSize(
        sum(sizes["prompt_tokens"] for sizes in tokens.values()) / len(examples),
        cost,
        sum(new_tokens.values()) / len(examples),
        saved,
    )


def _answers(messages: Messages) -> Messages:
    return [message for message in messages if message["role"] == "assistant"]


def _prompt_of(predictor: dspy.Predict, example: dspy.Example) -> Messages:
    """Return a predictor's prompt for an example."""
    inputs = inputs_of(predictor, example)
    demos = predictor.demos
    if isinstance(predictor, RetrievingPredict):
        demos = predictor.shown(inputs)
    return messages_of(predictor, demos, inputs)


def extra_instruction_tokens(setup: CompileSetup) -> dict[str, list[int]]:
    """Return how many more tokens each instruction has than the predictor's own instruction.

    The result maps each predictor to a list of these numbers. Instructions that have not been
    proposed yet are ignored.
    """
    num_tokens = token_counter()
    extra_tokens = {}
    for name, instructions in setup.slots.alternatives.items():
        texts = [instruction.text for instruction in instructions if instruction.origin != PLACEHOLDER]
        lengths = [num_tokens([{"role": "system", "content": text}]) for text in texts]
        extra_tokens[name] = [length - lengths[0] for length in lengths]
    return extra_tokens


def inputs_of(predictor: dspy.Predict, example: dspy.Example) -> dict[str, Any]:
    """Return a predictor's inputs for an example.

    If the example has no value for an input, use the first demo's value or an empty string.
    """
    sources: list[Any] = [example.inputs(), *predictor.demos[:1]]
    inputs = {}
    for name in predictor.signature.input_fields:
        inputs[name] = next((fields[name] for fields in sources if name in fields), "")
    return inputs


def make_budget(setup: CompileSetup, log: RunLog | None = None) -> Budget:
    """Return the budget for a compile run.

    Args:
        setup: The setup of the run.
        log: The log with the calls of earlier runs. None means that there are no earlier calls.

    Raises:
        ValueError: If `max_cost` is set, but a model's price is unknown.
    """
    options = setup.options
    max_calls = sys.maxsize
    if setup.plan.max_metric_calls is not None:
        max_calls = setup.plan.max_metric_calls + len(setup.attempts) + len(setup.proposals)
    expected_cost = None
    largest_cost = 0.0
    if options.max_cost is not None:
        models = [*setup.models, *language_models(options.metric)]
        if setup.teacher is not None and setup.attempts:
            models += language_models(setup.teacher)
        if setup.prompt_model is not None:
            models.append(setup.prompt_model)
        unknown = {str(lm.model) for lm in models if price_of(str(lm.model)) is None}
        if unknown:
            raise UserError(
                f"max_cost cannot be applied, because the price of {', '.join(sorted(unknown))} is unknown: pass "
                "max_metric_calls instead of max_cost"
            )
        expected_cost = size_of_call(setup).cost
        largest_cost = max(
            (size_of_call(setup, rival=rival).cost or 0.0 for rival in setup.rivals), default=0.0
        )
    budget = Budget(
        log or RunLog(),
        max_calls=max_calls,
        max_seconds=options.max_seconds,
        started=setup.started,
        max_cost=options.max_cost,
        expected_cost=expected_cost,
        varied=bool(setup.rivals),
    )
    budget.largest_cost = max(budget.largest_cost, largest_cost)
    return budget

"""The estimated cost of a compile, and the budget that limits it."""

import math
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import dspy

from plr_dspy.compiling.plan import Plan
from plr_dspy.errors import UserError
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.instructions import PLACEHOLDER
from plr_dspy.programs.rivals import Rival
from plr_dspy.programs.slots import messages_of
from plr_dspy.programs.tokens import token_counter
from plr_dspy.report.text import count, dollars
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.scoring.budget import Budget, cost_of, price_of
from plr_dspy.scoring.run_log import RunLog

SAMPLED_PROMPTS = 20  # examples over which prompt tokens are averaged
BOOTSTRAP_SHARE = 0.25  # maximum share of max_seconds and max_cost for bootstrapping
# Approximate calls of the prompt model for each task, and their tokens without those of
# examples.
CALLS_PER_PROPOSAL = 3
EXAMPLES_PER_PROPOSAL = 5
PROPOSAL_PROMPT = 500
PROPOSAL_REPLY = 200


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a compile; `print` shows it in two lines, or three with a warning.

    Attributes:
        program_calls: Maximum program calls in all phases.
        bootstrap_calls: Program calls that bootstrap demos before the search.
        proposal_calls: Approximate calls of the prompt model that propose instructions, in
            addition to the program's.
        plan: Numbers of examples and program calls in the later phases.
        prompt_tokens: Approximate tokens of all prompts by GPT-4o's tokenizer, on average
            over the instructions to choose from; None if prompts cannot be built.
        cost: Approximate cost in US dollars at litellm's list prices, if answers are as long
            as the demos'. It ignores hidden reasoning tokens and `max_cost`. None if a price
            is unknown, or the metric calls a language model.
        affordable_calls: Approximate number of calls that `max_cost` pays for; None if `cost`
            is None.
        warning: Says that prompts may exceed the model's context window; empty if none does,
            or if litellm does not know the window.
    """

    program_calls: int
    bootstrap_calls: int
    plan: Plan
    prompt_tokens: int | None
    cost: float | None
    affordable_calls: int | None
    proposal_calls: int = 0
    warning: str = ""

    def __str__(self) -> str:
        text = f"at most {count(self.program_calls, 'program call')}"
        if self.proposal_calls:
            text += f" and about {self.proposal_calls:,} calls of the prompt model"
        if self.prompt_tokens is not None:
            text += f", about {self.prompt_tokens:,} prompt tokens"
        if self.cost is not None:
            text += f", about {dollars(self.cost)} (answers as long as the demos')"
        if self.affordable_calls is not None and self.affordable_calls < self.program_calls:
            text += f"; max_cost ends the compile after about {count(self.affordable_calls, 'call')}"
        plan = self.plan
        phases = {
            "bootstrapped demos": self.bootstrap_calls,
            "search": plan.program_calls - plan.race_calls - plan.final_calls,
            "race": plan.race_calls,
            "final comparison": plan.final_calls,
        }
        calls = ", ".join(f"{phase} {number:,}" for phase, number in phases.items() if number > 0)
        text += f"\n  calls: {calls or 'none'}"
        return f"{text}\nwarning: {self.warning}" if self.warning else text


def estimate_cost(setup: CompileSetup) -> Estimate:
    """Estimate the cost of a compile, including the calls that make its demos."""
    plan = setup.plan
    num_attempts = len(setup.attempts)
    num_calls = plan.program_calls + num_attempts
    if not num_calls:
        return Estimate(0, 0, plan, 0, 0.0, 0)
    tokens, call_cost = size_of_call(setup)
    teacher_cost = call_cost
    if setup.teacher is not None and num_attempts:
        teacher_cost = size_of_call(setup, setup.teacher).cost
    cost_of_instructions = cost_of_proposals(setup)
    cost = None
    affordable_calls = None
    if call_cost is not None and teacher_cost is not None and cost_of_instructions is not None:
        cost_of_calls = call_cost * plan.program_calls + teacher_cost * num_attempts
        cost = cost_of_calls + cost_of_instructions
        affordable_calls = num_calls
        max_cost = setup.options.max_cost
        if max_cost is not None and cost > max_cost:
            affordable_calls = max(0, int(num_calls * (max_cost - cost_of_instructions) / cost_of_calls))
    return Estimate(
        program_calls=num_calls,
        bootstrap_calls=num_attempts,
        plan=plan,
        prompt_tokens=None if tokens is None else round(num_calls * tokens),
        cost=cost,
        affordable_calls=affordable_calls,
        proposal_calls=CALLS_PER_PROPOSAL * len(setup.proposals),
    )


def cost_of_proposals(setup: CompileSetup) -> float | None:
    """Return the approximate dollars of proposed instructions; None if the prompt model has no price."""
    if not setup.proposals:
        return 0.0
    model = setup.prompt_model or dspy.settings.lm
    num_tokens = token_counter()
    examples = [{"role": "user", "content": repr(example)} for example in setup.scored_examples[:EXAMPLES_PER_PROPOSAL]]
    num_calls = CALLS_PER_PROPOSAL * len(setup.proposals)
    sizes = {
        "prompt_tokens": float(num_calls * (PROPOSAL_PROMPT + num_tokens(examples))),
        "completion_tokens": float(num_calls * PROPOSAL_REPLY),
    }
    return cost_of({str(model.model): sizes})


class CallSize(NamedTuple):
    """The mean prompt tokens and cost of a program call."""

    tokens: float | None  # in all its prompts; None if they cannot be built
    cost: float | None  # dollars; None if a price or an answer's length is unknown, or the metric calls a model


def size_of_call(setup: CompileSetup, teacher: dspy.Module | None = None, *, rival: Rival | None = None) -> CallSize:
    """Estimate the size of a call to the program, its teacher or a rival, if answers are as long as the demos'."""
    examples = setup.scored_examples[:SAMPLED_PROMPTS]
    num_tokens = token_counter()
    tokens: dict[str, Any] = defaultdict(Counter)
    try:
        program = setup.slots.build(setup.slots.showing(0.5)) if rival is None else rival.program
        models = [predictor.lm or dspy.settings.lm for predictor in (teacher or program).predictors()]
        extra_tokens = _tokens_of_alternatives(setup) if teacher is None else {}
        for example in examples:
            for (name, predictor), lm in zip(program.named_predictors(), models, strict=False):
                inputs = inputs_of(predictor, example)
                retrieves = isinstance(predictor, RetrievingPredict)
                demos = predictor.shown(inputs) if retrieves else predictor.demos
                messages = messages_of(predictor, demos, inputs)
                answers = [message for message in messages if message["role"] == "assistant"]
                prompt_tokens = num_tokens(messages) + extra_tokens.get(name, 0.0)
                sizes = {"prompt_tokens": prompt_tokens, "completion_tokens": math.nan}
                if answers:
                    sizes["completion_tokens"] = num_tokens(answers) / len(answers)
                tokens[str(lm.model)].update(sizes)
    except Exception:  # The adapter or litellm may fail; the other figures are still useful.
        return CallSize(None, None)
    cost = cost_of(tokens)
    if cost is None or math.isnan(cost) or language_models(setup.options.metric):
        cost = None
    else:
        cost /= len(examples)
    return CallSize(sum(sizes["prompt_tokens"] for sizes in tokens.values()) / len(examples), cost)


def _tokens_of_alternatives(setup: CompileSetup) -> dict[str, float]:
    """Return the mean tokens of each predictor's instructions, less those of its own.

    Proposals that are not known yet are assumed to be as long as its own.
    """
    num_tokens = token_counter()
    extra_tokens = {}
    for name, instructions in setup.slots.alternatives.items():
        texts = [instruction.text for instruction in instructions if instruction.origin != PLACEHOLDER]
        lengths = [num_tokens([{"role": "system", "content": text}]) for text in texts]
        extra_tokens[name] = fmean(lengths) - lengths[0]
    return extra_tokens


def inputs_of(predictor: dspy.Predict, example: dspy.Example) -> dict[str, Any]:
    """Return a predictor's inputs for an example; missing ones are taken from the first demo."""
    sources: list[Any] = [example.inputs(), *predictor.demos[:1]]
    inputs = {}
    for name in predictor.signature.input_fields:
        inputs[name] = next((fields[name] for fields in sources if name in fields), "")
    return inputs


def make_budget(setup: CompileSetup, log: RunLog | None = None) -> Budget:
    """Return the budget of a compile; `log` holds the calls of earlier runs.

    Raises:
        ValueError: If `max_cost` is set and a model has no price.
    """
    options = setup.options
    max_calls = sys.maxsize
    if setup.plan.max_metric_calls is not None:
        max_calls = setup.plan.max_metric_calls + len(setup.attempts) + len(setup.proposals)
    expected_cost = None
    dearest = 0.0
    if options.max_cost is not None:
        models = [*setup.models, *language_models(options.metric)]
        if setup.teacher is not None and setup.attempts:
            models += language_models(setup.teacher)
        if setup.prompt_model is not None:
            models.append(setup.prompt_model)
        unknown = {str(lm.model) for lm in models if price_of(str(lm.model)) is None}
        if unknown:
            raise UserError(f"max_cost needs a price for {', '.join(sorted(unknown))}: pass max_metric_calls instead")
        expected_cost = size_of_call(setup).cost
        dearest = max((size_of_call(setup, rival=rival).cost or 0.0 for rival in setup.rivals), default=0.0)
    budget = Budget(
        log or RunLog(),
        max_calls=max_calls,
        max_seconds=options.max_seconds,
        started=setup.started,
        max_cost=options.max_cost,
        expected_cost=expected_cost,
        varied=bool(setup.rivals),
    )
    budget.dearest = max(budget.dearest, dearest)
    return budget

"""What a compile will cost, and the budget that limits it."""

import math
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import dspy

from plr_dspy.compilation.plan import MIN_ORDERS, Plan
from plr_dspy.compilation.run import MIN_COMPARED
from plr_dspy.errors import UserError
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.slots import messages_of
from plr_dspy.programs.tokens import Messages, token_counter
from plr_dspy.report.text import dollars, prompt_count
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.scoring.budget import MARGIN, Budget, cost_of, price_of
from plr_dspy.scoring.run_log import RunLog

SAMPLED_PROMPTS = 20  # examples whose prompts' tokens are counted for the mean
BOOTSTRAP_SHARE = 0.25  # of the dollars, at most, for demos that a teacher makes


@dataclass(frozen=True)
class Estimate:
    """What a compile would cost; `print` says it in a few lines.

    Attributes:
        program_calls: Program calls of all phases, at most; a compile never makes more.
        bootstrap_calls: Those of them that make demos before the search.
        plan: The phases after that, with their examples and program calls (`search_calls`, `race_calls`,
            `final_calls`); what one leaves goes to the next.
        prompt_tokens: Tokens of all prompts, about, by the tokenizer of GPT-4o. A picture, a sound or a file counts as
            250, unless litellm can read its pages. What a predictor reads of another's outputs is taken from its first
            demo. None if prompts cannot be made.
        cost: US dollars for these prompts, and for answers as long as the demos', about, by litellm's list prices,
            without hidden reasoning and without `max_cost`. None if no price is known for a model, or a language model
            scores the answers.
        affordable_calls: As many of the `program_calls` as `max_cost` pays for, about; None if `cost` is.
        text: What is printed.
    """

    program_calls: int
    bootstrap_calls: int
    plan: Plan
    prompt_tokens: int | None
    cost: float | None
    affordable_calls: int | None
    text: str = ""

    def __repr__(self) -> str:
        return f"<Estimate: {self.text.splitlines()[0]}>"

    def __str__(self) -> str:
        return self.text


def estimate_cost(setup: CompileSetup, logprobs_plan: Plan | None) -> Estimate:
    """Return what a compile costs, the calls that make its demos included.

    Args:
        setup: The compile.
        logprobs_plan: Its plan if log-probabilities come; None if none can come.
    """
    plan = setup.plan
    num_attempts = len(setup.attempts)
    num_calls = plan.program_calls + num_attempts
    if not num_calls:
        return Estimate(0, 0, plan, 0, 0.0, 0, "no program call is made")
    tokens, call_cost = size_of_call(setup)
    teacher_cost = call_cost
    if setup.teacher is not None and num_attempts:
        teacher_cost = size_of_call(setup, setup.teacher).cost
    prompt_tokens = None
    if tokens is not None:
        prompt_tokens = round(num_calls * tokens)
    cost = None
    affordable = None
    if call_cost is not None and teacher_cost is not None:
        cost = call_cost * plan.program_calls + teacher_cost * num_attempts
        affordable = num_calls
        max_cost = setup.options.max_cost
        if max_cost is not None and cost > max_cost:
            affordable = int(num_calls * max_cost / cost)
    estimate = Estimate(num_calls, num_attempts, plan, prompt_tokens, cost, affordable)
    lines = [_describe_limits(setup, estimate)]
    if affordable is not None and affordable < num_calls:
        lines.append("without max_cost:")
    lines += _describe_phases(setup, logprobs_plan)
    return replace(estimate, text="\n  ".join(lines))


def _describe_limits(setup: CompileSetup, estimate: Estimate) -> str:
    """Return the line that says what all calls cost, and what may end the compile earlier."""
    affordable = estimate.affordable_calls
    line = f"at most {estimate.program_calls:,} program calls, prompt tokens "
    line += "not known" if estimate.prompt_tokens is None else f"about {estimate.prompt_tokens:,}"
    if estimate.cost is not None:
        line += f", about {dollars(estimate.cost)} (answers as long as the demos')"
    max_cost = setup.options.max_cost
    if max_cost is not None:
        effect = "pays for all of them"
        if affordable is None:
            effect = "may end it earlier"
        elif affordable < estimate.program_calls:
            effect = f"ends it earlier, after about {affordable:,} calls at this price"
        line += f"; max_cost=${max_cost:g} {effect}"
    max_seconds = setup.options.max_seconds
    if max_seconds is not None:
        line += f"; max_seconds={max_seconds:g} may end it earlier"
    return line


def _describe_phases(setup: CompileSetup, logprobs_plan: Plan | None) -> list[str]:
    """Return a line for each phase, and one for the number of prompts."""
    plan = setup.plan
    noun = setup.slots.noun
    space = setup.slots.space
    num_distinct = space.num_distinct
    first = plan.num_first_examples
    most = plan.num_train_examples
    if logprobs_plan is not None:
        first = min(first, logprobs_plan.num_first_examples)
    examples = f"{most} {setup.options.scored_on}"
    if setup.options.scored_on == "train examples":
        number = f"{first} to {most}" if first < most else f"{most}"
        examples = f"{number} of {len(setup.splits.train)} train examples"
    search_calls = max(0, plan.program_calls - plan.race_calls - plan.final_calls)
    num_orders = min(search_calls // first, num_distinct)
    lines = [f"search: about {search_calls:,} calls, {num_orders:,} {noun}s on {examples}"]
    if setup.attempts:
        lines.append(f"bootstrapped demos: at most {len(setup.attempts):,} calls")
    if plan.race_calls:
        lines.append(f"race: about {plan.race_calls:,} calls")
    num_finalists = min(plan.num_finalists, num_distinct)
    lines.append(
        f"final comparison: about {plan.final_calls:,} calls, {num_finalists} {noun}s on "
        f"{plan.num_selection_examples} of {len(setup.splits.selection)} selection examples"
    )
    prompts = [f"{slot.predictor}: {prompt_count(slot.space.num_distinct)}" for slot in setup.slots.slots]
    if space.programs:
        prompts.append(f"found for each input: {prompt_count(len(space.programs))}")
    lines.append(f"{prompt_count(num_distinct)} distinct prompts ({', '.join(prompts)})")
    return lines


class CallSize(NamedTuple):
    """Mean size of a program call."""

    tokens: float | None  # of its prompts; None if prompts cannot be made
    cost: float | None  # dollars; None if a price or the size of an answer is not known, or the metric calls a model


def size_of_call(setup: CompileSetup, asked: dspy.Module | None = None) -> CallSize:
    """Return the mean size of a program call, with answers as the demos show them.

    Args:
        setup: The compile.
        asked: A program of the same predictors whose models are called; None for the setup's own.
    """
    examples = setup.scored_examples[:SAMPLED_PROMPTS]
    count = token_counter()
    means: dict[str, dict[str, float]] = {}
    try:
        program = setup.slots.build(setup.slots.showing(0.5))
        asked = program if asked is None else asked
        models = [predictor.lm or dspy.settings.lm for predictor in asked.predictors()]
        for example in examples:
            for predictor, lm in zip(program.predictors(), models, strict=False):
                messages = _prompt_of(predictor, example)
                answers = [message for message in messages if message["role"] == "assistant"]
                answer_tokens = count(answers) / len(answers) if answers else math.nan
                mean = means.setdefault(str(lm.model), {"prompt_tokens": 0.0, "completion_tokens": 0.0})
                mean["prompt_tokens"] += count(messages) / len(examples)
                mean["completion_tokens"] += answer_tokens / len(examples)
    except Exception:  # An adapter fails, or litellm does not know a message: no reason to refuse an estimate.
        return CallSize(None, None)
    tokens = sum(mean["prompt_tokens"] for mean in means.values())
    cost = None
    if not language_models(setup.options.metric):
        cost = cost_of(means)
    if cost is not None and math.isnan(cost):
        cost = None
    return CallSize(tokens, cost)


def _prompt_of(predictor: dspy.Predict, example: dspy.Example) -> Messages:
    """Return the prompt for an example; what it lacks is taken to be as in the first demo."""
    known: list[Any] = [example.inputs(), *predictor.demos[:1]]
    inputs = {}
    for name in predictor.signature.input_fields:
        inputs[name] = next((fields[name] for fields in known if name in fields), "")
    demos = predictor.demos
    if isinstance(predictor, RetrievingPredict):
        demos = predictor.shown(inputs)
    return messages_of(predictor, demos, inputs)


def make_budget(setup: CompileSetup, log: RunLog | None = None, started: float | None = None) -> Budget:
    """Return the budget of a compile that started then; the log has what earlier runs paid for.

    Raises:
        ValueError: If a model has no price, or the money pays for no comparison of a few orders.
    """
    options = setup.options
    plan = setup.plan
    log = log or RunLog()
    max_calls = sys.maxsize
    if plan.max_metric_calls is not None:
        max_calls = plan.max_metric_calls + len(setup.attempts)
    budget = partial(Budget, log, max_calls=max_calls, max_seconds=options.max_seconds, started=started)
    max_cost = options.max_cost
    if max_cost is None:
        return budget()
    models = [*setup.models, *language_models(options.metric)]
    if setup.teacher is not None and setup.attempts:
        models += language_models(setup.teacher)
    unknown = {str(lm.model) for lm in models if price_of(str(lm.model)) is None}
    if unknown:
        raise UserError(f"max_cost needs a price for {', '.join(sorted(unknown))}: pass max_metric_calls instead")
    expected = size_of_call(setup).cost
    if expected is not None and plan.program_calls and not log.tokens_before:
        _check_cost(setup, max_cost, expected)
    return budget(max_cost=max_cost, expected_cost=expected)


def _check_cost(setup: CompileSetup, max_cost: float, call_cost: float) -> None:
    """Raise if the money does not pay for a comparison of a few orders."""
    plan = setup.plan
    num_orders = min(MIN_ORDERS, setup.slots.space.num_distinct)
    num_compared = min(MIN_COMPARED, plan.num_selection_examples)
    calls = num_orders * plan.num_first_examples + plan.num_finalists * num_compared
    least = (MARGIN * calls + 1) * call_cost
    if setup.attempts:
        least /= 1.0 - BOOTSTRAP_SHARE
    if max_cost < least:
        raise UserError(
            f"max_cost={max_cost:g} is too small for {num_orders} candidates on {plan.num_first_examples} examples "
            f"and a final comparison on {num_compared}, some {calls} calls: pass max_cost={1.1 * least:.2g} or more"
        )

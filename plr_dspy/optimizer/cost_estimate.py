"""What a compile would cost, said before anything is paid."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import dspy

from plr_dspy.compilation.path import MIN_COMPARED
from plr_dspy.compilation.plan import MIN_ORDERS
from plr_dspy.lm.prices import cost_of, without_price
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.calls import models_of
from plr_dspy.programs.copies import ProgramFactory, language_models, named_predictors
from plr_dspy.programs.prompts import PromptRenderer
from plr_dspy.report.text import dollars, prompt_count
from plr_dspy.scoring.budget import MARGIN, Budget
from plr_dspy.scoring.ledger import Ledger

TOKENIZER = "gpt-4o"
"""The model whose tokenizer counts for all: litellm brings it along, and would look for others on the network."""

SAMPLED_PROMPTS = 20
"""Prompts whose tokens are counted for the mean."""


@dataclass(frozen=True)
class Estimate:
    """What a compile would cost.

    Attributes:
        orders: Orders of its demos that give different prompts, for each predictor that has demos.
        distinct_prompts: Over all predictors together.
        num_train, num_selection: Examples of the two splits, demo examples left out.
        num_orders, num_train_examples: Orders that the search scores, and examples that score one, at most.
        scored_on: What these are: "train examples", or "probing inputs" of methods that make their own.
        num_first_examples: Examples that score an order at first; the good ones go on to more.
        num_finalists, num_selection_examples: The same of the final comparison.
        search_calls, race_calls, final_calls: Program calls planned for the search, for the race of its best
            orders, and for the final comparison; what one leaves goes to the next.
        program_calls: Of all three, at most; a compile never makes more.
        prompt_tokens: Tokens of all prompts, about: by the tokenizer of GPT-4o, whatever the model. None where the
            prompts cannot be told from the examples, as with predictors that read each other's outputs.
        cost: US dollars for these prompts, and for answers as long as those that the demos show, about: by the list
            prices that come with litellm, without hidden reasoning. None where that is not known: where no price is
            known for a model, or a language model scores the answers. As if there were no `max_cost`.
        bootstrap_calls: Program calls that make demos before, at most; they are part of `program_calls`.
        noun: What is scored, in a word.
        max_cost, max_seconds: Limits that may end the compile earlier; None for none.
        affordable_calls: As many of the `program_calls` as `max_cost` pays for, about; None where `cost` is.
    """

    orders: dict[str, int]
    distinct_prompts: int
    num_train: int
    num_selection: int
    num_orders: int
    num_train_examples: int
    num_first_examples: int
    num_finalists: int
    num_selection_examples: int
    search_calls: int
    race_calls: int
    final_calls: int
    program_calls: int
    prompt_tokens: int | None
    cost: float | None
    scored_on: str = "train examples"
    bootstrap_calls: int = 0
    noun: str = "order"
    max_cost: float | None = None
    max_seconds: float | None = None
    affordable_calls: int | None = None

    @property
    def _ends_by_cost(self) -> bool:
        """Tell whether the money is known to pay for fewer calls than there may be."""
        return self.affordable_calls is not None and self.affordable_calls < self.program_calls

    @property
    def _limits(self) -> str:
        """Say what other limits than that of calls do."""
        if not self.program_calls:
            return ""
        effect = "may end it earlier" if self.affordable_calls is None else "pays for all of them"
        if self._ends_by_cost:
            effect = f"ends it earlier, after about {self.affordable_calls:,} calls at this price"
        cost = "" if self.max_cost is None else f"; max_cost=${self.max_cost:g} {effect}"
        seconds = "" if self.max_seconds is None else f"; max_seconds={self.max_seconds:g} may end it earlier"
        return cost + seconds

    @property
    def _scored_on(self) -> str:
        if self.scored_on != "train examples":
            return f"{self.num_train_examples} {self.scored_on}"
        first = f"{self.num_first_examples} to " if self.num_first_examples < self.num_train_examples else ""
        return f"{first}{self.num_train_examples} of {self.num_train} train examples"

    def __repr__(self) -> str:
        return f"<Estimate: {str(self).splitlines()[0]}>"

    def __str__(self) -> str:
        tokens = "not known" if self.prompt_tokens is None else f"about {self.prompt_tokens:,}"
        cost = "" if self.cost is None else f", about {dollars(self.cost)} (answers as long as the demos')"
        orders = ", ".join(f"{name}: {prompt_count(count)}" for name, count in self.orders.items())
        return (
            f"at most {self.program_calls:,} program calls, prompt tokens {tokens}{cost}{self._limits}\n"
            + ("  without max_cost:\n" if self._ends_by_cost else "")
            + f"  search: about {self.search_calls:,} calls, {self.num_orders:,} {self.noun}s on {self._scored_on}\n"
            + (
                f"  bootstrapped demos: at most {self.bootstrap_calls:,} calls\n"
                if self.bootstrap_calls
                else ""
            )
            + (f"  race: about {self.race_calls:,} calls\n" if self.race_calls else "")
            + f"  final comparison: about {self.final_calls:,} calls, {self.num_finalists} {self.noun}s on "
            f"{self.num_selection_examples} of {self.num_selection} selection examples\n"
            f"  {prompt_count(self.distinct_prompts)} distinct prompts ({orders})"
        )


def estimate(
    job: Job,
    *,
    bootstrap_calls: int = 0,
    max_cost: float | None = None,
    max_seconds: float | None = None,
) -> Estimate:
    """The cost of a prepared compile, and of calls that make demos before; limits are those of `PLReorder`."""
    tokens = tokens_a_call(job)
    prompt_tokens = None if tokens is None else sum(counts["prompt_tokens"] for counts in tokens.values())
    dollars_a_call = cost_a_call(job, tokens)
    plan, num_distinct = job.plan, job.slots.space.num_distinct
    calls, all_calls = plan.program_calls, plan.program_calls + bootstrap_calls
    first = plan.num_first_examples if plan.racing else plan.num_train_examples
    search_calls = calls - min(plan.race_calls + plan.final_calls, calls)
    asked = search_calls // first if first else 0
    return Estimate(
        orders={slot.predictor: slot.space.num_distinct for slot in job.slots.slots},
        distinct_prompts=num_distinct,
        num_train=len(job.splits.train),
        num_selection=len(job.splits.selection),
        num_orders=min(asked, num_distinct),
        num_train_examples=plan.num_train_examples,
        num_first_examples=first,
        num_finalists=min(plan.num_finalists, num_distinct),
        num_selection_examples=plan.num_selection_examples,
        search_calls=search_calls,
        race_calls=min(plan.race_calls, calls),
        final_calls=min(plan.final_calls, calls),
        program_calls=all_calls,
        prompt_tokens=None if prompt_tokens is None else round(prompt_tokens * all_calls),
        cost=None if dollars_a_call is None else dollars_a_call * all_calls,
        scored_on=job.optimizer.scored_on,
        bootstrap_calls=bootstrap_calls,
        noun=job.slots.noun,
        max_cost=max_cost,
        max_seconds=max_seconds,
        affordable_calls=_affordable(all_calls, dollars_a_call, max_cost),
    )


def _affordable(num_calls: int, dollars_a_call: float | None, max_cost: float | None) -> int | None:
    """As many of the calls as the money pays for; None where nobody knows what a call costs."""
    if dollars_a_call is None:
        return None
    if max_cost is None or not dollars_a_call:
        return num_calls
    return min(num_calls, int(max_cost / dollars_a_call))


def tokens_a_call(job: Job) -> dict[str, dict[str, float]] | None:
    """Mean tokens of a program call by model, of prompts and of answers as the demos show them.

    None where some predictor reads more than the examples' inputs; nan for answers where it has no demos to show any.
    """
    examples = [*job.splits.train, *job.splits.selection][:SAMPLED_PROMPTS]
    tokens: dict[str, dict[str, float]] = {}
    try:
        prompts = _prompts(job, examples)
        with offline_litellm() as litellm:
            # Images count as so many tokens each, so that none is downloaded.
            count = partial(litellm.token_counter, TOKENIZER, use_default_image_token_count=True)
            for model, messages in prompts:
                answers = [message for message in messages if message["role"] == "assistant"]
                kinds = tokens.setdefault(model, {"prompt_tokens": 0.0, "completion_tokens": 0.0})
                kinds["prompt_tokens"] += count(messages=messages) / len(examples)
                answer = count(messages=answers) / len(answers) if answers else math.nan
                kinds["completion_tokens"] += answer / len(examples)
    except (
        Exception
    ):  # of an adapter, or a message that litellm does not know: no reason to refuse an estimate
        return None
    return tokens or None


def cost_a_call(job: Job, tokens: Mapping[str, Mapping[str, float]] | None) -> float | None:
    """Mean dollars of a program call with so many tokens by model; None where that is not known."""
    if tokens is None or models_of(job.optimizer.metric):
        return None
    cost = cost_of(tokens)
    return None if cost is None or math.isnan(cost) else cost


def _prompts(job: Job, examples: Sequence[dspy.Example]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The models and messages of all predictors on these examples; none where they cannot be told before a call."""
    renderer = PromptRenderer()
    program = ProgramFactory(job.program).build(job.slots.demos(job.slots.typical))
    predictors = program.predictors()
    prompts = []
    for example in examples:
        inputs = dict(example.inputs().items())
        for predictor in predictors:
            lm = predictor.lm or dspy.settings.lm
            if lm is None or not predictor.signature.input_fields.keys() <= inputs.keys():
                return []
            prompts.append((str(lm.model), renderer.prompt(predictor, predictor.demos, inputs)))
    return prompts


@contextmanager
def offline_litellm() -> Iterator[ModuleType]:
    """Import litellm without the look at its price list on the network that the first import takes."""
    name = "LITELLM_LOCAL_MODEL_COST_MAP"
    before = os.environ.get(name)
    os.environ[name] = "True"
    try:
        yield importlib.import_module("litellm")
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def models_in_use(job: Job) -> list[dspy.BaseLM]:
    """The language models of the predictors, and those that score answers, as far as they can be found."""
    own = [predictor.lm or dspy.settings.lm for _, predictor in named_predictors(job.program)]
    return [lm for lm in [*own, *models_of(job.optimizer.metric)] if lm is not None]


def make_budget(
    job: Job,
    ledger: Ledger | None = None,
    *,
    max_cost: float | None = None,
    max_seconds: float | None = None,
    teacher: dspy.Module | None = None,
    share: float = 0.0,
) -> Budget:
    """Return the budget of a compile, whose time begins now.

    Args:
        job: What is paid for.
        ledger: What has been paid for before.
        max_cost, max_seconds: Limits in dollars and seconds; None for none.
        teacher: A program that is called before.
        share: Of the money, for what is called before.

    Raises:
        ValueError: when a model has no price, or the money pays for no comparison of a few orders.
    """
    limits: dict[str, Any] = {"max_calls": job.plan.max_metric_calls, "max_seconds": max_seconds}
    if limits["max_calls"] is not None:
        limits["max_calls"] += len(job.attempts)
    if max_cost is None:
        return Budget(ledger, **limits)
    teaching = [] if teacher is None else language_models(teacher)
    if unknown := without_price([*models_in_use(job), *teaching]):
        raise ValueError(f"max_cost needs a price for {', '.join(unknown)}: pass max_metric_calls instead")
    expected = cost_a_call(job, tokens_a_call(job))
    if expected is not None and not (ledger and ledger.num_resumed):
        _check_enough(job, max_cost, expected, share)
    return Budget(ledger, max_cost=max_cost, price=cost_of, expected=expected, **limits)


def _check_enough(job: Job, max_cost: float, expected: float, share: float) -> None:
    """Raise unless the money pays for a few orders and a final comparison, as far as can be told."""
    plan = job.plan
    num_first = plan.num_first_examples if plan.racing else plan.num_train_examples
    num_orders = min(MIN_ORDERS, job.slots.space.num_distinct)
    num_compared = min(MIN_COMPARED, plan.num_selection_examples)
    calls = num_orders * num_first + plan.num_finalists * num_compared
    least = (MARGIN * calls + 1) * expected / (1.0 - share) if plan.program_calls else 0.0
    if max_cost < least:
        scale = 10.0 ** (math.floor(math.log10(least)) - 1)
        enough = (math.floor(least / scale) + 1) * scale
        raise ValueError(
            f"max_cost={max_cost:g} is too small for {num_orders} orders on {num_first} examples and a final "
            f"comparison on {num_compared}, some {calls} calls: pass max_cost={enough:.2g} or more"
        )

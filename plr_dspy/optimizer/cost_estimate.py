"""What a compile would cost, said before anything is paid, and the budget that it has."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import dspy

from plr_dspy.compilation.path import MIN_COMPARED
from plr_dspy.compilation.plan import BUDGETS, MIN_ORDERS, Plan
from plr_dspy.labels.outputs import label_output
from plr_dspy.lm.prices import cost_of, without_price
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.copies import language_models
from plr_dspy.programs.slots import prompt_messages
from plr_dspy.report.text import dollars, prompt_count
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.scoring.budget import MARGIN, Budget
from plr_dspy.scoring.ledger import Ledger

LOCAL_PRICES, _IMPORTING = "LITELLM_LOCAL_MODEL_COST_MAP", threading.Lock()
"""Set while litellm is imported, its import looks for no price list on the network."""

TOKENIZER = "gpt-4o"
"""The model whose tokenizer counts for all: litellm brings it along, and would look for others on the network."""

SAMPLED_PROMPTS = 20
"""Examples whose prompts' tokens are counted for the mean."""

BOOTSTRAP_SHARE = 0.25
"""Of the dollars, at most, for demos that a teacher makes."""


@dataclass(frozen=True)
class Estimate:
    """What a compile would cost; `print` says it in a few lines.

    Attributes:
        program_calls: Program calls of all phases, at most; a compile never makes more.
        bootstrap_calls: Those of them that make demos before the search.
        plan: The phases after that, with their program calls (`search_calls`, `race_calls`, `final_calls`; what one
            leaves goes to the next; of the paper's algorithm before any limit) and examples.
        prompt_tokens: Tokens of all prompts, about: by the tokenizer of GPT-4o, whatever the model. What a predictor
            reads of another's outputs is taken to be as in its first demo, or empty. None where prompts cannot be made.
        cost: US dollars for these prompts, and for answers as long as those that the demos show, about: by the list
            prices that come with litellm, without hidden reasoning. None where that is not known: where no price is
            known for a model, or a language model scores the answers. As if there were no `max_cost`.
        affordable_calls: As many of the `program_calls` as `max_cost` pays for, about; None where `cost` is.
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


def estimate(job: Job) -> Estimate:
    """Say what a prepared compile costs, and the calls that make demos before."""
    plan, max_cost, attempts = job.plan, job.optimizer.max_cost, len(job.attempts)
    calls, tokens = plan.program_calls + attempts, tokens_a_call(job)
    prompt_tokens = cost = affordable = None
    if tokens is not None:
        prompt_tokens = round(calls * sum(counts["prompt_tokens"] for counts in tokens.values()))
    a_call = of_teacher = cost_a_call(job, tokens)
    if job.teacher is not None and attempts:
        of_teacher = cost_of_attempt(job)
    if a_call is not None and of_teacher is not None:
        cost = a_call * plan.program_calls + of_teacher * attempts
        affordable = calls if max_cost is None or cost <= max_cost else int(calls * max_cost / cost)
    found = Estimate(calls, attempts, plan, prompt_tokens, cost, affordable)
    return replace(found, text="\n  ".join(_lines(job, found)))


def _lines(job: Job, found: Estimate) -> list[str]:
    """What is printed."""
    if not found.program_calls:
        return ["no program call is made"]
    optimizer, plan, noun, affordable = job.optimizer, job.plan, job.slots.noun, found.affordable_calls
    line = f"at most {found.program_calls:,} program calls, prompt tokens "
    line += "not known" if found.prompt_tokens is None else f"about {found.prompt_tokens:,}"
    line += "" if found.cost is None else f", about {dollars(found.cost)} (answers as long as the demos')"
    ends_by_cost = affordable is not None and affordable < found.program_calls
    if optimizer.max_cost is not None:
        effect = "may end it earlier" if affordable is None else "pays for all of them"
        if ends_by_cost:
            effect = f"ends it earlier, after about {affordable:,} calls at this price"
        line += f"; max_cost=${optimizer.max_cost:g} {effect}"
    if optimizer.max_seconds is not None:
        line += f"; max_seconds={optimizer.max_seconds:g} may end it earlier"
    first, most, num_distinct = plan.num_first_examples, plan.num_train_examples, job.slots.space.num_distinct
    if optimizer.signal != "score" and not isinstance(label_output(job.program), str):  # log-probabilities may come
        first = min(first, job.planned(signal="logprobs").num_first_examples)
    examples = f"{most} {optimizer.scored_on}"
    if optimizer.scored_on == "train examples":
        number = f"{first} to {most}" if first < most else f"{most}"
        examples = f"{number} of {len(job.splits.train)} train examples"
    search_calls = plan.program_calls - min(plan.race_calls + plan.final_calls, plan.program_calls)
    num_orders, num_finalists = (min(n, num_distinct) for n in (search_calls // first, plan.num_finalists))
    distinct = {slot.predictor: slot.space.num_distinct for slot in job.slots.slots}
    distinct |= {"found for each input": len(beside)} if (beside := job.slots.space.beside) else {}
    of_each = ", ".join(f"{name}: {prompt_count(number)}" for name, number in distinct.items())
    return [
        line,
        *["without max_cost:"] * ends_by_cost,
        f"search: about {search_calls:,} calls, {num_orders:,} {noun}s on {examples}",
        *[f"bootstrapped demos: at most {found.bootstrap_calls:,} calls"] * bool(found.bootstrap_calls),
        *[f"race: about {plan.race_calls:,} calls"] * bool(plan.race_calls),
        f"final comparison: about {plan.final_calls:,} calls, {num_finalists} {noun}s on "
        f"{plan.num_selection_examples} of {len(job.splits.selection)} selection examples",
        f"{prompt_count(num_distinct)} distinct prompts ({of_each})",
    ]


def tokens_a_call(job: Job, asked: dspy.Module | None = None) -> dict[str, dict[str, float]] | None:
    """Mean tokens of a program call by model, of prompts and of answers as the demos show them.

    The models are the program's, or those of another one `asked`, of the same predictors. None where prompts cannot be
    made; nan for answers where a predictor has no demos to show any.
    """
    examples = job.scored_examples[:SAMPLED_PROMPTS]
    tokens, count = dict[str, dict[str, float]](), token_counter()
    try:
        predictors = job.slots.build(job.slots.typical).predictors()
        models = predictors if asked is None else asked.predictors()
        for example, (predictor, of) in product(examples, list(zip(predictors, models, strict=False))):
            lm, known = of.lm or dspy.settings.lm, [example.inputs(), *predictor.demos[:1]]
            inputs = {
                name: next((each[name] for each in known if name in each), "")
                for name in predictor.signature.input_fields
            }
            finds = isinstance(predictor, RetrievingPredict)
            demos = predictor.shown(inputs) if finds else predictor.demos
            messages = prompt_messages(predictor, demos, inputs)
            answers = [message for message in messages if message["role"] == "assistant"]
            kinds = tokens.setdefault(str(lm.model), {"prompt_tokens": 0.0, "completion_tokens": 0.0})
            kinds["prompt_tokens"] += count(messages=messages) / len(examples)
            answer = count(messages=answers) / len(answers) if answers else math.nan
            kinds["completion_tokens"] += answer / len(examples)
    except Exception:  # of an adapter, or a message that litellm does not know: no reason to refuse an estimate
        return None
    return tokens or None


def cost_a_call(job: Job, tokens: Mapping[str, Mapping[str, float]] | None) -> float | None:
    """Mean dollars of a program call with so many tokens by model; None where that is not known."""
    if tokens is None or language_models(job.optimizer.metric):
        return None
    cost = cost_of(tokens)
    return None if cost is None or math.isnan(cost) else cost


def cost_of_attempt(job: Job) -> float | None:
    """Mean dollars of a call that makes demos: one of the teacher, with prompts and answers of the student's size."""
    return cost_a_call(job, tokens_a_call(job, job.teacher))


def token_counter() -> Callable[..., int]:
    """What counts the tokens of messages."""
    with _IMPORTING:
        ours = "litellm" not in sys.modules and LOCAL_PRICES not in os.environ
        if ours:
            os.environ[LOCAL_PRICES] = "True"
        try:
            import litellm
        finally:
            if ours:
                os.environ.pop(LOCAL_PRICES, None)
    # Images count as so many tokens each, so that none is downloaded.
    return partial(litellm.token_counter, TOKENIZER, use_default_image_token_count=True)


def make_budget(job: Job, ledger: Ledger | None = None, started: float | None = None) -> Budget:
    """Return the budget of a compile that started then; the ledger has what was paid for before.

    A model without a price, and money that pays for no comparison of a few orders, are a ValueError.
    """
    plan, max_cost = job.plan, job.optimizer.max_cost
    limits: dict[str, Any] = {"max_seconds": job.optimizer.max_seconds, "started": started}
    if plan.max_metric_calls is not None:
        planned = plan.max_metric_calls + len(job.attempts)
        # Those of others in the same folder count, too: the plan may be of fewer than the user allows.
        allowed = job.optimizer.max_metric_calls or BUDGETS.get(getattr(job.optimizer, "auto", ""), 0)
        limits |= {"planned": planned, "max_calls": max(planned, allowed)}
    if max_cost is None:
        return Budget(ledger, **limits)
    teaching = [] if job.teacher is None or not job.attempts else language_models(job.teacher)
    if unknown := without_price([*job.models, *language_models(job.optimizer.metric), *teaching]):
        raise ValueError(f"max_cost needs a price for {', '.join(unknown)}: pass max_metric_calls instead")
    expected = cost_a_call(job, tokens_a_call(job))
    if expected is not None and plan.program_calls and not (ledger and ledger.num_resumed):
        num_orders = min(MIN_ORDERS, job.slots.space.num_distinct)
        num_compared = min(MIN_COMPARED, plan.num_selection_examples)
        calls = num_orders * plan.num_first_examples + plan.num_finalists * num_compared
        least = (MARGIN * calls + 1) * expected / (1.0 - BOOTSTRAP_SHARE * bool(job.attempts))
        if max_cost < least:
            raise ValueError(
                f"max_cost={max_cost:g} is too small for {num_orders} candidates on {plan.num_first_examples} examples "
                f"and a final comparison on {num_compared}, some {calls} calls: pass max_cost={1.1 * least:.2g} or more"
            )
    return Budget(ledger, max_cost=max_cost, price=cost_of, expected=expected, **limits)

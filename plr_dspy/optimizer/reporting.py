"""Makes the report of a compile from what it found."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import dspy

from plr_dspy._version import __version__
from plr_dspy.compilation.outcome import Outcome
from plr_dspy.lm.prices import cost_of, without_price
from plr_dspy.optimizer.attempts import attempt_errors
from plr_dspy.optimizer.demo_texts import demo_texts
from plr_dspy.optimizer.job import Job
from plr_dspy.orderings.arrangement_distribution import ArrangementDistribution
from plr_dspy.orderings.plackett_luce import distribution_state
from plr_dspy.programs.calls import models_of
from plr_dspy.programs.copies import language_models, named_predictors
from plr_dspy.programs.slots import Slot
from plr_dspy.report.report import Report
from plr_dspy.report.schema import Candidate, SlotReport
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.scoring.ledger import Ledger, Tokens
from plr_dspy.search.proposal import Distribution

LARGEST_JSON_INTEGER = 2**53
"""Larger whole numbers lose digits in most JSON readers, so they are written as floats."""


def build_report(
    job: Job, outcome: Outcome, ledger: Ledger, *, settings: dict[str, Any], seconds: float
) -> Report:
    """The report of a finished compile."""
    num_distinct = job.slots.space.num_distinct
    calls, tokens = outcome.program_calls, _total([ledger.tokens, *(each.tokens for each in job.earlier)])
    if earlier := len(job.earlier):
        calls = {**calls, "bootstrap": earlier, "total": calls["total"] + earlier}
    return Report(
        slots=_slot_reports(job, outcome),
        distinct_prompts=num_distinct if num_distinct < LARGEST_JSON_INTEGER else _as_float(num_distinct),
        comparison=outcome.comparison,
        candidates=[
            Candidate(
                origin=result.finalist.origin,
                ordering={
                    name: list(permutation)
                    for name, permutation in job.slots.permutations(result.finalist.ordering).items()
                },
                score=result.score,
                expected_gain=result.gain.expected,
                probability=result.gain.probability,
            )
            for result in outcome.candidates
        ],
        evidence=outcome.evidence,
        signal=job.setup.signal and replace(job.setup.signal, leaning=outcome.leaning),
        calibration=outcome.calibration,
        history=outcome.history,
        program_calls=calls,
        tokens=tokens,
        cost=None if without_price(models_in_use(job)) else cost_of(tokens),
        seconds=seconds,
        errors=[
            *attempt_errors(job.earlier),
            *ledger.errors(job.names, original=job.slots.fingerprint(job.original)),
        ],
        stopped=outcome.stopped,
        settings=settings,
        plr_dspy_version=__version__,
        dspy_version=dspy.__version__,
    )


def models_in_use(job: Job) -> list[dspy.BaseLM]:
    """The language models of the predictors, and those that score answers, as far as they can be found."""
    own = [predictor.lm or dspy.settings.lm for _, predictor in named_predictors(job.program)]
    return [lm for lm in [*own, *models_of(job.optimizer.metric)] if lm is not None]


def _total(some: Iterable[Tokens]) -> dict[str, dict[str, int]]:
    """The sum of token counts by model and kind."""
    total: dict[str, Counter[str]] = defaultdict(Counter)
    for tokens in some:
        for model, counts in tokens.items():
            total[model].update(counts)
    return {model: dict(counts) for model, counts in total.items()}


def _slot_reports(job: Job, outcome: Outcome) -> list[SlotReport]:
    permutations, original = map(job.slots.permutations, (outcome.ordering, job.original))
    distributions = iter(outcome.distributions)
    predictors = dict(named_predictors(job.program))
    redact = Redactor([dspy.settings.lm, *language_models(job.program)])
    return [
        SlotReport(
            predictor=slot.predictor,
            num_demos=len(slot.demos),
            ordering=list(permutations[slot.predictor]),
            blocks=[list(block) for block in slot.blocks],
            distributions=[_state(next(distributions)) for _ in slot.blocks],
            demos=demo_texts(predictors[slot.predictor], slot.demos, redact=redact),
            classes=_classes(slot),
            original=list(original[slot.predictor]),
        )
        for slot in job.slots.slots
    ]


def _state(distribution: Distribution) -> dict[str, Any]:
    """A distribution as JSON data."""
    if isinstance(distribution, ArrangementDistribution):
        return distribution.state_dict()
    return distribution_state(distribution)


def _classes(slot: Slot) -> list[int | None]:
    """The class of each demo; of none, where all have one."""
    known = {
        demo: number
        for block, numbers in zip(slot.blocks, slot.classes, strict=True)
        for demo, number in zip(block, numbers, strict=True)
    }
    several = len(set(known.values())) > 1
    return [known.get(demo) if several else None for demo in range(len(slot.demos))]


def _as_float(number: int) -> float:
    """The float nearest to it; there are no larger ones than 1.8e308."""
    return float(min(number, int(sys.float_info.max)))

"""Makes the report of a compile from what it found."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy
import numpy as np
from dspy.adapters.utils import format_field_value

from plr_dspy._version import __version__
from plr_dspy.compilation.choice import Outcome
from plr_dspy.lm.prices import cost_of, without_price
from plr_dspy.metrics.over_set import LabelMetric
from plr_dspy.optimizer.bootstrapping import attempt_errors
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.calls import models_of
from plr_dspy.programs.copies import language_models, named_predictors
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.report.data import Candidate, Confusion, ProgramState, Report, Signal, SlotReport
from plr_dspy.runtime.redaction import Redactor
from plr_dspy.scoring.cells import error_counts
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.space import Ordering

LONGEST = 500
"""Characters of a field's text."""

_DATA = re.compile(r"<<CUSTOM-TYPE-START-IDENTIFIER>>.*?<<CUSTOM-TYPE-END-IDENTIFIER>>", re.S)
"""What DSPy makes of pictures, sounds and files."""


def build_report(
    job: Job,
    outcome: Outcome,
    scorer: CellScorer,
    *,
    names: Sequence[str],
    signal: Signal | None,
    **others: Any,
) -> Report:
    """Make the report of a compile that has ended; names are those of examples, others are fields of the report."""
    ledger, original, permutations = scorer.ledger, job.original, job.slots.permutations
    no_price = without_price([*job.models, *models_of(job.optimizer.metric)])
    candidates = [
        Candidate(
            origin=result.origin,
            ordering=permutations(result.ordering),
            score=result.score,
            expected_gain=result.gain.expected,
            probability=result.gain.probability,
        )
        for result in outcome.candidates
    ]
    found = ("comparison", "evidence", "calibration", "history", "program_calls", "stopped")
    return Report(
        original=_program_state(job, original, scorer),
        returned=_program_state(job, outcome.ordering, scorer),
        slots=_slot_reports(job, outcome),
        distinct_prompts=float(
            min(job.slots.space.num_distinct, int(sys.float_info.max))
        ),  # the largest float
        candidates=candidates,
        signal=signal and signal.model_copy(update={"leaning": outcome.leaning}),
        tokens={model: dict(counts) for model, counts in ledger.tokens.items()},
        cost=None if no_price else cost_of(ledger.tokens),
        errors=[
            *attempt_errors(job.attempts),
            *error_counts(ledger.cells.items(), names),
        ],
        confusion=_confusion(job, outcome),
        plr_dspy_version=__version__,
        dspy_version=dspy.__version__,
        **{name: getattr(outcome, name) for name in found},
        **others,
    )


def _confusion(job: Job, outcome: Outcome) -> Confusion | None:
    """Count the labels that both programs answered, where the metric is one of labels over a set."""
    metric, examples = job.optimizer.metric, [*job.splits.train, *job.splits.selection]
    if not isinstance(metric, LabelMetric) or not outcome.answered:
        return None
    facts = [metric.fact(examples[example]) for example, *_ in outcome.answered]
    labels = sorted(set(facts))
    counts = []
    for which in (1, 2):
        table = np.zeros((len(labels), len(labels) + 1), dtype=np.int64)
        for fact, told in zip(facts, outcome.answered, strict=True):
            label = metric.label_of(told[which])
            table[labels.index(fact), labels.index(label) if label in labels else -1] += 1
        counts.append(table.tolist())
    return Confusion(labels=labels, original=counts[0], returned=counts[1])


def _program_state(job: Job, ordering: Ordering, scorer: CellScorer) -> ProgramState:
    """Count what the program shows in an ordering, and how the calls that scored it ended."""
    cells = scorer.cells_of(ordering)
    return ProgramState(
        num_demos=job.slots.num_demos(ordering),
        demo_tokens=job.slots.tokens(ordering) if isinstance(job.slots, PoolSlots) else None,
        num_calls=len(cells),
        num_failed=sum(bool(cell.error) for cell in cells),
    )


def _slot_reports(job: Job, outcome: Outcome) -> list[SlotReport]:
    """Make the part of the report for each predictor with demos."""
    ordering, original = job.slots.permutations(outcome.ordering), job.slots.permutations(job.original)
    distributions = iter(outcome.distributions)
    predictors = dict(named_predictors(job.program))
    redact = Redactor([dspy.settings.lm, *language_models(job.program)])
    return [
        SlotReport(
            predictor=slot.predictor,
            num_demos=len(slot.demos),
            ordering=ordering[slot.predictor],
            blocks=[list(block) for block in slot.blocks],
            distributions=[next(distributions).state_dict() for _ in slot.blocks],
            demos=_texts(predictors[slot.predictor], slot.demos, redact),
            origins=[pooled.origin for pooled in slot.pool],
            original=original[slot.predictor],
        )
        for slot in job.slots.slots
    ]


def _texts(
    predictor: dspy.Predict, demos: Sequence[Mapping[str, Any]], redact: Callable[[str], str]
) -> list[dict[str, str]]:
    """The fields of each demo that the predictor's prompt shows, as it shows them, without secrets, cut where long."""

    def start(text: str) -> str:
        text = redact(_DATA.sub("[data]", text)).encode(errors="replace").decode()  # what can be written
        return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"

    shown = predictor.signature.fields.items()
    return [
        {name: start(format_field_value(field, demo[name])) for name, field in shown if name in demo}
        for demo in demos
    ]

"""Makes the report of a compile from what it found, and logs it to MLflow."""

import contextlib
import logging
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dspy
import numpy as np
from dspy.adapters.utils import format_field_value

from plr_dspy._version import __version__
from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.phases import Compilation
from plr_dspy.labels.work import NoCalls
from plr_dspy.metrics.over_set import AverageScoreBy, LabelMetric, SetMetric
from plr_dspy.optimizer.demos import attempt_errors
from plr_dspy.optimizer.job import Job
from plr_dspy.programs.calls import own_copy
from plr_dspy.programs.copies import language_models
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.programs.splits import source_of
from plr_dspy.report.data import Alternative, Candidate, Confusion, ProgramState, Report, RetrievalReport, SlotReport
from plr_dspy.retrieval.predict import Pool
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.runtime import Redactor
from plr_dspy.scoring.budget import cost_of, price_of
from plr_dspy.scoring.ledger import error_counts
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.search.space import Ordering

logger = logging.getLogger(__name__)

LONGEST = 500  # characters of a field's text
MOST_VOTES = 500
"""Examples, at most, on which the vote of neighbours is scored: each takes a millisecond, and what the metric does."""

_DATA = re.compile(r"<<CUSTOM-TYPE-START-IDENTIFIER>>.*?<<CUSTOM-TYPE-END-IDENTIFIER>>", re.S)
"""What DSPy makes of pictures, sounds and files."""


def build_report(job: Job, outcome: Outcome, scorer: CellScorer, *, names: Sequence[str], **others: Any) -> Report:
    """Make the report of a compile that has ended; names are those of examples, others are fields of the report."""
    models = [*job.models, *language_models(job.optimizer.metric)]
    tokens: dict[str, Any] = defaultdict(Counter)
    for model, counts in (each for paid in list(scorer.ledger.paid) for each in paid.items()):
        tokens[model].update(counts)
    found = ("comparison", "evidence", "calibration", "history", "program_calls", "stopped")
    errors = error_counts(scorer.ledger.cells.items(), names)
    if job.attempts:
        errors = [*attempt_errors(job.attempts), *errors]
    # Without calls a rule stands where the original does.
    original = job.slots.original if isinstance(job.slots, PoolSlots) else job.original
    return Report(
        original=_program_state(job, original, scorer),
        returned=_program_state(job, outcome.ordering, scorer),
        slots=_slot_reports(job, outcome, original),
        distinct_prompts=float(min(job.slots.space.num_distinct, int(sys.float_info.max))),
        candidates=[
            Candidate(
                origin=result.origin,
                ordering=job.slots.shown(result.ordering),
                score=result.score,
                expected_gain=result.gain.expected,
                probability=min(result.gain.probability, result.gain.probability_calibrated),
                probability_worse=max(result.gain.worse, result.gain.worse_calibrated),
            )
            for result in outcome.candidates
        ],
        tokens=tokens,
        cost=cost_of(tokens) if all(price_of(str(lm.model)) for lm in models) else None,
        errors=errors,
        confusion=_confusion(job, outcome),
        plr_dspy_version=__version__,
        dspy_version=dspy.__version__,
        settings=job.settings(),
        **{name: getattr(outcome, name) for name in found},
        **others,
    )


def _confusion(job: Job, outcome: Outcome) -> Confusion | None:
    """Count the labels that both programs answered, where the metric is one of labels over a set."""
    metric, examples = job.optimizer.metric, job.scored_examples
    if not isinstance(metric, LabelMetric) or not outcome.answered:
        return None
    facts = [metric.fact(examples[example]) for example, *_ in outcome.answered]
    labels = sorted(set(facts))

    def table(answers: Iterable[Any]) -> list[list[int]]:
        counts = Counter(zip(facts, map(metric.label_of, answers), strict=True))
        rows = [[counts[fact, label] for label in labels] for fact in labels]
        return [[*row, facts.count(fact) - sum(row)] for fact, row in zip(labels, rows, strict=True)]

    _, before, after = zip(*outcome.answered, strict=True)
    return Confusion(labels=labels, original=table(before), returned=table(after))


def _program_state(job: Job, ordering: Ordering, scorer: CellScorer) -> ProgramState:
    """Count what the program shows in an ordering, and how the calls that scored it ended."""
    cells = scorer.cells_of(ordering).values()
    return ProgramState(
        num_demos=job.slots.num_demos(ordering),
        demo_tokens=job.slots.tokens(ordering) if isinstance(job.slots, PoolSlots) else None,
        num_calls=len(cells),
        num_failed=sum(bool(cell.error) for cell in cells),
    )


def _slot_reports(job: Job, outcome: Outcome, shown: Ordering) -> list[SlotReport]:
    """Make the part of the report for each predictor with demos; texts are those of prompts, without secrets."""
    ordering, original = job.slots.shown(outcome.ordering), job.slots.shown(shown)
    distributions, predictors = iter(outcome.distributions), dict(job.program.named_predictors())
    redact = Redactor([dspy.settings.lm, *language_models(job.program)])

    def start(text: str) -> str:
        text = redact(_DATA.sub("[data]", text)).encode(errors="replace").decode()  # what can be written
        return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"

    def texts(predictor: dspy.Predict, demo: Any) -> dict[str, str]:
        fields = predictor.signature.fields.items()
        return {n: start(format_field_value(field, demo[n])) for n, field in fields if n in demo}

    return [
        SlotReport(
            predictor=slot.predictor,
            num_demos=len(slot.demos),
            ordering=ordering[slot.predictor],
            blocks=[list(block) for block in slot.blocks],
            distributions=[next(distributions).state_dict() for _ in slot.blocks],
            demos=[texts(predictors[slot.predictor], demo) for demo in slot.demos],
            origins=[pooled.origin for pooled in slot.pool],
            original=original[slot.predictor],
        )
        for slot in job.slots.slots
    ]


@dataclass(frozen=True)
class ExpectedScore:
    """What an ordering is expected to score, with the offsets of labels that calibrate it."""

    ordering: Ordering
    offsets: Sequence[float]
    score: float
    num_examples: int
    interval: tuple[float, float]


def expected_scores(compilation: Compilation, outcome: Outcome) -> list[ExpectedScore]:
    """All that was scored, best first.

    A score is that of the original as it is and the expected gain over it, so that its interval has the error of both
    means.
    """
    original, scores = compilation.original, compilation.scores()
    if not scores:
        return []
    fitted, found = outcome.fitted, []
    fitted = fitted or compilation.search.model.fit(scores, kept=[original, outcome.ordering])
    counts = dict(zip(fitted.orderings, (~np.isnan(fitted.table)).sum(axis=1).tolist(), strict=True))
    orderings = [estimate.ordering for estimate in fitted.estimates()]
    reference = original if original in counts else orderings[0]
    before, expected = fitted.as_it_is(reference), fitted.expected_scores(reference)
    influence, comparison, kept = compilation.scorer.influence, outcome.comparison, 1.0
    if influence is not None and comparison is not None and comparison.expected_original is not None:
        # Near both programs, as the comparison has them.
        start = comparison.expected_original[0]
        if (linear := expected[outcome.ordering] - before) > 0 and outcome.chosen:
            kept = comparison.expected_gain / linear
        expected = {ordering: start + kept * (value - before) for ordering, value in expected.items()}
        before = start
    for ordering in orderings:
        # The original is not calibrated where that is not better, or it was returned as it was.
        stays = ordering == reference and (before >= expected[ordering] or outcome.chosen == 0)
        score, calibration = before if stays else expected[ordering], fitted.calibration(ordering)
        ends = fitted.interval(ordering, score, reference=reference)
        if influence is not None:
            score, ends = influence.limited(score), (influence.limited(ends[0]), influence.limited(ends[1]))
        offsets = calibration.offsets if calibration and fitted.calibrating and not stays else ()
        found.append(ExpectedScore(ordering, offsets, round(score, 6), counts[ordering], ends))
    return found


def best_by_number(job: Job, outcome: Outcome, scored: Sequence[ExpectedScore]) -> dict[int, ExpectedScore]:
    """The best arrangement of each number of demos; the chosen one before all others."""
    best: dict[int, ExpectedScore] = {}
    for each in sorted(scored, key=lambda each: each.ordering != outcome.ordering):
        if each.ordering == job.original or job.slots.space.holds(each.ordering):
            best.setdefault(job.slots.num_demos(each.ordering), each)
    return dict(sorted(best.items()))


def choice_of_demos(
    job: Job, outcome: Outcome, scored: Sequence[ExpectedScore], best: Mapping[int, ExpectedScore]
) -> dict[str, Any]:
    """The fields of a report that compare numbers of demos, ways to show them, and a vote of neighbours."""
    slots = job.slots
    assert isinstance(slots, PoolSlots)
    return {
        "best_by_number": [
            _alternative(slots, each, f"{n} demos", num_demos=n, ordering=slots.shown(each.ordering))
            for n, each in best.items()
        ],
        "retrieval": _retrieval(job, slots, outcome, scored) if isinstance(slots, RetrievalSlots) else None,
        "vote": _vote(job, slots),
    }


def _alternative(slots: PoolSlots, each: ExpectedScore, name: str, **more: Any) -> Alternative:
    """Make the report's row of what was scored."""
    tokens = slots.tokens(each.ordering)
    expected: Any = {"score": each.score, "interval": each.interval, "num_examples": each.num_examples}
    return Alternative(name=name, tokens=tokens, **expected, **more)


def _retrieval(job: Job, slots: RetrievalSlots, outcome: Outcome, scored: Sequence[ExpectedScore]) -> RetrievalReport:
    """Compare the ways to show demos: the best of each kind."""
    kinds: dict[str, ExpectedScore] = {}
    for each in scored:
        rule, shown = slots.rule_of(each.ordering), any(slots.permutations(each.ordering).values())
        kind = ("no demos", "the best fixed demos")[shown]
        if rule is not None:
            kind = ("the best rule for each input", "both together")[shown]
        if each.ordering == job.original:
            kind = "your program, calibrated" if each.offsets else "your program"
        kinds.setdefault(kind, each)
        if each.ordering in slots.space.beside[:1]:
            kinds["the nearest demos, nearest last"] = each
    models = {str(lm.model) for lm in job.models}
    price = price_of(*models) if len(models) == 1 else None
    rule, number = slots.rule_of(outcome.ordering), sum(len(pool.demos) for pool in slots.found.values())
    fixed = sum(map(len, slots.permutations(outcome.ordering).values()))
    return RetrievalReport(
        rule=None if rule is None else {**asdict(rule), "order": list(rule.order)},
        text=("" if rule is None else f"{f'{fixed} fixed ones, then ' * bool(fixed)}{rule}"),
        num_pooled=number,
        alternatives=[
            _alternative(
                slots,
                each,
                kind,
                found_tokens=slots.found_tokens(each.ordering),
                cost=price and 1_000 * slots.tokens(each.ordering) * price.prompt,
            )
            for kind, each in kinds.items()
        ],
    )


def _vote(job: Job, slots: PoolSlots) -> Alternative | None:
    """Score the most frequent answer of each example's neighbours by the metric; neither a language model nor an
    embedder is called."""
    predictors, number, answers = job.program.named_predictors(), job.optimizer.max_demos, list[Any]()
    names = set(predictors[0][1].signature.input_fields)
    labelled = [each for each in job.examples if names <= set(each.inputs().keys())]
    if len(predictors) != 1 or job.splits.classes is None or not labelled or language_models(job.optimizer.metric):
        return None
    if isinstance(slots, RetrievalSlots) and slots.found:
        (pool,) = slots.found.values()
    else:
        pool = Pool(predictors[0][1], labelled, [source_of(each.inputs()) for each in labelled])
    examples = [e for e in (*job.splits.selection, *job.splits.train) if pool.knows(e.inputs())][:MOST_VOTES]
    metric, calls = job.optimizer.metric, NoCalls()
    over_set = metric if isinstance(metric, SetMetric) else AverageScoreBy(lambda example: "", metric)
    with contextlib.suppress(Exception, SystemExit), dspy.context(callbacks=[calls], trace=[]):
        for example in examples:
            inputs = dict(example.inputs().items())
            answer = dspy.Prediction(**pool.vote(inputs, number, without=inputs))
            answers.append(over_set.outputs(own_copy(example), answer))
    if not answers or calls.stopped or len(answers) < len(examples):  # The metric looks at more than the outputs.
        return None
    score = over_set.value([over_set.fact(each) for each in examples], answers, [1.0] * len(answers))
    name = f"a vote of the {number} nearest examples, without a language model, scores"
    return Alternative(name=name, score=score, num_examples=len(answers), tokens=0)


def log_to_mlflow(report: Report) -> None:
    """Log a report to the active MLflow run; do nothing where MLflow is not imported, or no run is active.

    Settings are parameters; scores are metrics by program calls, and in percent as `eval`, by which MLflow compares
    programs; the report is ``reorder_report.json``, its figure, with matplotlib, ``reorder_report.png``.
    """
    mlflow: Any = sys.modules.get("mlflow")
    try:
        if not getattr(mlflow, "active_run", lambda: None)():
            return
        scalars = {n: v for n, v in report.settings.items() if isinstance(v, (str, int, float)) and v != ""}
        if report.signal is not None:
            scalars["signal_used"] = report.signal.used
        mlflow.log_params({f"reorder.{name}": value for name, value in scalars.items()})
        found = {"program_calls": report.program_calls["total"], "cost": report.cost}
        if report.comparison is not None:
            found |= {name: getattr(report.comparison, name) for name in ("original", "chosen", "gain")}
        mlflow.log_metrics({f"reorder.{name}": value for name, value in found.items() if value is not None}, step=0)
        for round_ in report.history:
            best = round_.best_score_so_far
            told = {"reorder.best_score": best, "reorder.mean_score": round_.mean_score, "eval": 100 * best}
            mlflow.log_metrics(told, step=round_.program_calls)
        mlflow.log_dict(report.to_dict(), "reorder_report.json")
        with contextlib.suppress(ImportError):  # no matplotlib
            mlflow.log_figure(report.plot(), "reorder_report.png")
    except Exception as error:  # of whatever stores it, wherever that is; the compile is paid for
        logger.warning("the report could not be logged to MLflow: %s: %s", type(error).__name__, error)

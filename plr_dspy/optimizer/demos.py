"""What PLFewShot chooses from, such as demos that a teacher's right answers make, and what is said of the choice."""

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import dspy
import numpy as np

from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.run import CompileRun
from plr_dspy.dspy_compat import AdapterParseError, Hasher, is_compiled
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import label_outputs
from plr_dspy.metrics.by_example import function_of, takes
from plr_dspy.metrics.copies import own_value
from plr_dspy.optimizer.job import BOOTSTRAP_SHARE, Attempt, Job, size_of_call
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator, adapter_advice
from plr_dspy.programs.copying import ProgramFactory, language_models
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.slots import OWN, PooledDemo, PoolSlots, as_text, messages_of
from plr_dspy.programs.splits import Examples, by_content, mixed, shown_by, source_of, value_key
from plr_dspy.programs.tokens import token_counter
from plr_dspy.report.data import Alternative, ErrorCount, RetrievalReport
from plr_dspy.report.stop import StopReason
from plr_dspy.report.text import count
from plr_dspy.retrieval.slots import NEAREST_LAST, RetrievalSlots
from plr_dspy.scoring.budget import price_of
from plr_dspy.scoring.causes import cure_of
from plr_dspy.scoring.run_log import CallRecord, error_counts
from plr_dspy.search.space import Candidate, WholeProgram

logger = logging.getLogger(__name__)

# Share of the trainset that demos are made of, and the most examples. The other three quarters score: chance moves a
# score by 1 / sqrt(4 n), which is 15 % more than on all examples. A search of some hundred calls tells more than 50
# demos apart no better than it tells 50.
POOL_SHARE, LARGEST_POOL = 0.25, 50
ATTEMPTS = 2  # examples that a teacher is run on, at most, for each demo wanted: an attempt that fails makes none
NOT_KNOWN = "..."  # stands for what a teacher will answer


def demo_examples(trainset: Examples, valset: Examples, rng: random.Random) -> dict[int, dspy.Example]:
    """The examples that demos are made of, by their numbers, no two with the same inputs, the classes evenly mixed.

    They are the same ones, in the same order, whatever the order of the trainset. Examples with the same inputs count
    as one for the share, so that duplicates leave enough to score. Examples whose inputs the valset has are left to it.
    """
    keys = [source_of(example.inputs()) for example in (*trainset, *valset)]
    taken = set(keys[len(trainset) :])
    number = min(LARGEST_POOL, round(POOL_SHARE * len({*keys} - taken)))
    chosen: dict[int, dspy.Example] = {}
    labels = [value_key(dict(example.labels().items())) for example in trainset]
    for index in mixed(by_content(trainset), labels, rng, balanced=True):
        if len(chosen) < number and keys[index] not in taken:
            taken.add(keys[index])
            chosen[index] = trainset[index]
    return chosen


def pools_of(
    program: dspy.Module, *, labelled: Mapping[int, dspy.Example], attempts: Sequence[Attempt], given: Sequence[Any]
) -> dict[str, list[PooledDemo]]:
    """The pool of each predictor: what its prompt shows, each text once, the student's own demos first.

    Then come what attempts made, labelled examples by their numbers in the trainset, and the list that the user gave.
    """
    count, pools = token_counter(), {}
    others = [(example, f"trainset[{number}]") for number, example in labelled.items()]
    others += [(demo, f"candidates[{i}]") for i, demo in enumerate(given)]
    for name, predictor in program.named_predictors():
        own = [(demo, OWN) for demo in predictor.demos]
        showing = [each for each in attempts if name in each.demos]
        made = [(each.demos[name], f"bootstrapped from trainset[{each.example}]") for each in showing]
        no_demos = messages_of(predictor, [])
        tokens_before, nothing = count(no_demos), as_text(no_demos)
        seen, pool = {nothing}, []
        for demo, origin in [*own, *made, *others]:
            messages = messages_of(predictor, [demo])
            text = as_text(messages)
            if text != nothing and (text not in seen or origin == OWN):
                seen.add(text)
                pool.append(PooledDemo(demo, origin, count(messages) - tokens_before))
        pools[name] = pool
    return pools


def stand_ins(
    program: dspy.Module, examples: Mapping[int, dspy.Example], wanted: int, *, beside_labelled: bool
) -> list[Attempt]:
    """The attempts at so many demos, before they are made, with demos for predictors whose fields the examples lack.

    There are none beside labelled examples that have all outputs, which are labels: a right answer would add nothing.
    """
    predictors = program.predictors()
    outputs = {name for predictor in predictors for name in predictor.signature.output_fields}
    labels = {output.name for predictor in predictors for output in label_outputs("", predictor)}
    if beside_labelled and labels == outputs and all(outputs <= dict(each).keys() for each in examples.values()):
        return []
    needed = {name: predictor.signature.fields for name, predictor in program.named_predictors()}
    attempts = []
    for index, example in islice(examples.items(), ATTEMPTS * wanted):
        known = {field: value for field, value in example.items() if value is not None}
        demos = {
            name: dspy.Example({**dict.fromkeys(fields, NOT_KNOWN), **known})
            for name, fields in needed.items()
            if not fields.keys() <= known.keys()
        }
        attempts.append(Attempt(index, ("", str(index)), demos, CallRecord(None)))
    return attempts


class TeacherWork(MetricWork):
    """Runs the teacher of a job, or its student, on examples; cells hold the demos that right answers make.

    A teacher without demos that no optimizer has compiled is shown labelled examples, as by DSPy's `BootstrapFewShot`;
    DSPy's `trace` is passed to metrics that take three arguments. Teacher and student must be of the same structure.
    """

    ways_out = (
        " of the teacher's calls that make demos. If the teacher is at fault, pass another one, or "
        "candidates='labeled', which needs none where the examples have the outputs; a larger max_errors allows more "
        "failures"
    )

    def __init__(self, job: Job) -> None:
        optimizer: Any = job.optimizer
        examples = list(job.demo_examples.values())
        super().__init__(optimizer.metric, examples)
        if takes(function_of(optimizer.metric), 3):
            self._metric = lambda example, prediction: optimizer.metric(example, prediction, dspy.settings.trace)
        self._threshold = optimizer.metric_threshold
        teacher = job.program if job.teacher is None else job.teacher
        asked, needed = teacher.named_predictors(), job.program.named_predictors()
        student: Any = job.program
        if isinstance(student, CalibratedProgram) and job.teacher is not None:
            student = student.program  # The teacher has no calibration.
        names, of_student = [name for name, _ in asked], [name for name, _ in student.named_predictors()]
        if names != of_student:
            raise UserError(f"teacher must be a program with the predictors of student, {of_student}; it has {names}")
        for (name, one), (_, other) in zip(asked, needed, strict=True):
            if not one.signature.equals(other.signature):
                raise UserError(
                    f"teacher must ask as student does, and predictor {name!r} has other instructions or fields: give "
                    "it student's signature"
                )
        labelled: dict[str, list[Any]] = {}
        without = not any(each.demos for _, each in asked)
        if without and (job.teacher is None or not is_compiled(teacher)):
            rng = random.Random(0)  # as LabeledFewShot, which itself would take the program's model away
            number = min(optimizer.max_demos, len(examples))
            labelled = {name: rng.sample(examples, number) for name in names}
        self.teacher = ProgramFactory(teacher).build(labelled)
        self.models += language_models(self.teacher)
        predictors = zip(needed, self.teacher.named_predictors(), strict=True)
        self._shown = {name: (each, list(each.demos)) for (name, _), (_, each) in predictors}

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Run the teacher on an example, without its demos that show this example."""
        for predictor, shown in self._shown.values():
            predictor.demos = [demo for demo in shown if not shown_by([demo], [self.examples[example]])]
        prediction = self._answered(self.teacher, example)
        trace = list(dspy.settings.trace)
        score = self._scored(example, prediction).score or 0.0
        if score <= 0 if self._threshold is None else score < self._threshold:
            return CallRecord(None, message=f"scored {score:g}", value={})
        made: dict[str, list[dspy.Example]] = defaultdict(list)
        stages = Counter(predictor.stage for predictor, _ in self._shown.values())
        for name, (predictor, _) in self._shown.items():
            for asking, inputs, outputs in trace:
                # Modules such as dspy.BestOfN run copies, which keep the stage.
                if asking is predictor or (
                    stages[predictor.stage] == 1 and getattr(asking, "stage", "") == predictor.stage
                ):
                    made[name].append(dspy.Example({"augmented": True, **inputs, **outputs}))
        kept = {}
        for name, (*earlier, demo) in made.items():
            if earlier:  # Of a predictor that was asked several times the last or an earlier one, drawn as by DSPy.
                rng = random.Random(Hasher.hash((*earlier, demo)))
                demo = rng.choice(earlier) if rng.random() < 0.5 else demo
            # The program may write to what it has answered.
            kept[name] = {field: own_value(value) for field, value in demo.items()}
        return CallRecord(None, value=kept)


def make_attempts(job: Job, teaching: ProgramEvaluator) -> tuple[list[Attempt], bool]:
    """Run the teacher of a job on one example after the other, until enough of its answers were right.

    Returns:
        The attempts, and whether calls, or the share of money or time, ended them early.
    """
    optimizer: Any = job.optimizer
    log = teaching.log
    budget = teaching.budget
    of_student = budget.expected_cost
    prompt = f"bootstrapped by {digest([job.teacher, optimizer.metric_threshold, optimizer.max_demos, job.seed])}"
    contents = list(map(digest, job.demo_examples.values()))
    log.number_examples(contents)
    if job.teacher is not None:
        budget.expect(None if optimizer.max_cost is None else size_of_call(job, job.teacher)[1])
    budget.share = BOOTSTRAP_SHARE
    attempts: list[Attempt] = []
    ended_early = False
    for index, number in enumerate(list(job.demo_examples)[: len(job.attempts)]):
        if sum(bool(attempt.demos) for attempt in attempts) >= optimizer.max_bootstrapped:
            break
        key = (prompt, index)
        if not budget.recall(key):
            teaching.pay({key: None})
        if key not in log.records:
            logger.warning(
                "bootstrapping, which has a quarter of time and money, ended after %s: %s",
                count(index, "example"),
                budget.refused and budget.refused.value,
            )
            ended_early = True
            break
        record = log.records[key]
        demos = {predictor: dspy.Example(fields) for predictor, fields in (record.value or {}).items()}
        attempts.append(Attempt(number, (prompt, contents[index]), demos, record))
    budget.share = 1.0
    if job.teacher is not None:
        budget.expect(of_student)
    if num_right := sum(bool(each.demos) for each in attempts):
        logger.info("bootstrapped demos from %d of %d examples", num_right, len(attempts))
    elif attempts:
        reasons = _reasons_for_none(attempts, optimizer.metric_threshold)
        logger.warning(
            "no demo was bootstrapped: of %d calls of the teacher, %s. Only the other demos can be chosen, if there "
            "are any. To make some, %s",
            len(attempts),
            ", ".join(reason.told for reason in reasons),
            max(reasons, key=lambda reason: reason.number).cure,
        )
    return attempts, ended_early


class Reason(NamedTuple):
    """Why attempts made no demo: the number of these, the reason in words, and what cures it."""

    number: int
    told: str
    cure: str


def _reasons_for_none(attempts: Sequence[Attempt], least: float | None) -> list[Reason]:
    """Say why none of these attempts made a demo, where an answer needs at least such a score."""
    reasons = []
    for error in attempt_errors(attempts):
        if error.type == AdapterParseError.__name__:
            otherwise = adapter_advice()
        elif error.message.startswith("in the metric:"):
            otherwise = "mend the metric, or what it calls"
        else:
            otherwise = "mend the program, or pass another teacher"
        cure = cure_of([error.type], otherwise=otherwise)
        reasons.append(Reason(error.count, f"{error.count} ended in {error.type} ({error.message})", cure))
    without = [attempt.cell for attempt in attempts if not attempt.cell.error]
    if num_low := sum(bool(cell.message) for cell in without):
        limit = "0 or less" if least is None else f"less than metric_threshold={least:g}"
        cure = "see that the metric compares the right fields, or pass a better teacher or another metric_threshold"
        reasons.append(Reason(num_low, f"{num_low} gave an answer that scored {limit}", cure))
    if num_unseen := len(without) - num_low:
        told = f"{num_unseen} gave a right answer by calls that DSPy's trace does not hold, as of plain threads"
        cure = "start threads with dspy.Parallel, dspy.asyncify or contextvars.copy_context, and keep DSPy's trace"
        reasons.append(Reason(num_unseen, told, cure))
    return reasons


def attempt_errors(attempts: Sequence[Attempt]) -> list[ErrorCount]:
    """Count the attempts that ended in an exception, by its type."""
    cells = [(("", each.example), replace(each.cell, outcome="gave no demo")) for each in attempts]
    return error_counts(cells, {each.example: f"trainset[{each.example}]" for each in attempts})


class Scored(NamedTuple):
    """An ordering, the offsets of labels that calibrate it, and what a report says that it is expected to score."""

    ordering: Candidate
    offsets: Sequence[float]
    expected: dict[str, Any]


def expected_scores(slots: PoolSlots, compilation: CompileRun, outcome: Outcome) -> list[Scored]:
    """All that was scored, best first.

    A score is that of the original as it is and the expected gain over it, so that its interval has the error of both
    means.
    """
    original, scores = compilation.original, compilation.scores()
    if not scores:
        return []
    fitted = outcome.fitted or compilation.search.model.fit(scores, kept=[original, outcome.ordering])
    counts = dict(zip(fitted.orderings, (~np.isnan(fitted.table)).sum(axis=1).tolist(), strict=True))
    orderings = [estimate.ordering for estimate in fitted.estimates()]
    reference = original if original in counts else orderings[0]
    before, expected = fitted.as_it_is(reference), fitted.expected_scores(reference)
    influence = compilation.scorer.influence
    found: list[Scored] = []
    if influence is not None:
        scaled = outcome.scale_of_metric(reference)
        expected = {ordering: scaled(value) for ordering, value in expected.items()}
        before = scaled(before)
    for ordering in orderings:
        # The original is not calibrated where that is not better, or it was returned as it was.
        stays = ordering == reference and (before >= expected[ordering] or outcome.chosen == 0)
        score, calibration = before if stays else expected[ordering], fitted.calibration(ordering)
        ends = fitted.interval(ordering, score, reference=reference)
        if influence is not None:
            score = influence.clip(score)
            ends = (influence.clip(ends[0]), influence.clip(ends[1]))
        offsets = calibration.offsets if calibration and fitted.calibrating and not stays else ()
        told = {"score": round(score, 6), "interval": ends, "num_examples": counts[ordering]}
        found.append(Scored(ordering, offsets, {**told, "tokens": slots.tokens(ordering)}))
    return found


def choice_of_demos(job: Job, compilation: CompileRun, outcome: Outcome) -> tuple[dict[int, Scored], dict[str, Any]]:
    """Return the best arrangement of each number of demos, and what a report says of these and of other ways."""
    slots, best = job.slots, dict[int, Scored]()
    assert isinstance(slots, PoolSlots)
    scored = expected_scores(slots, compilation, outcome)
    failed = outcome.stop.reason is StopReason.ERROR  # then scores may be those of failures
    # The chosen one stands before all others with as many demos.
    for each in sorted([] if failed else scored, key=lambda each: each.ordering != outcome.ordering):
        if each.ordering == job.original or slots.space.holds(each.ordering):
            best.setdefault(slots.num_demos(each.ordering), each)
    best = dict(sorted(best.items()))
    numbers = [
        Alternative(name=f"{n} demos", num_demos=n, ordering=slots.shown(each.ordering), **each.expected)
        for n, each in best.items()
    ]
    retrieval = _retrieval(job, slots, outcome, scored) if isinstance(slots, RetrievalSlots) else None
    return best, {"best_by_number": numbers, "retrieval": retrieval}


def _retrieval(job: Job, slots: RetrievalSlots, outcome: Outcome, scored: Sequence[Scored]) -> RetrievalReport:
    """Compare the ways to show demos: the best of each kind."""
    kinds: dict[str, Scored] = {}
    for candidate in scored:
        variation = slots.variation(candidate.ordering)
        if candidate.ordering == job.original:
            kind = "your program, calibrated" if candidate.offsets else "your program"
        elif variation is not None:
            kind = "the best found demos"
        elif slots.num_demos(candidate.ordering):
            kind = "the best fixed demos"
        else:
            kind = "no demos"
        kinds.setdefault(kind, candidate)
        if _name_of(candidate.ordering) == NEAREST_LAST:
            kinds["the nearest demos, nearest last"] = candidate
    models = {str(lm.model) for lm in job.models}
    price = price_of(*models) if len(models) == 1 else None
    variation = slots.variation(outcome.ordering)
    alternatives = []
    for kind, candidate in kinds.items():
        cost = None if price is None else 1_000 * candidate.expected["tokens"] * price["prompt"]
        found_tokens = slots.found_tokens(candidate.ordering)
        alternatives.append(Alternative(name=kind, found_tokens=found_tokens, cost=cost, **candidate.expected))
    return RetrievalReport(
        variation=None if variation is None else _name_of(outcome.ordering),
        text="" if variation is None else str(variation),
        num_pooled=sum(len(pool.demos) for pool in slots.found.values()),
        alternatives=alternatives,
    )


def _name_of(candidate: Candidate) -> str:
    """Return the name of a whole program; empty for an arrangement."""
    return candidate.name if isinstance(candidate, WholeProgram) else ""

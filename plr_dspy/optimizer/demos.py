"""What PLFewShot chooses from, such as demos that a teacher's right answers make."""

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import dspy

from plr_dspy.dspy_compat import AdapterParseError, Hasher, is_compiled
from plr_dspy.errors import UserError
from plr_dspy.labels.outputs import label_outputs
from plr_dspy.metrics.by_example import function_of, takes
from plr_dspy.metrics.copies import own_value
from plr_dspy.optimizer.estimate import BOOTSTRAP_SHARE, size_of_call
from plr_dspy.optimizer.setup import Attempt, CompileSetup
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator, adapter_advice
from plr_dspy.programs.copying import ProgramFactory, language_models
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.slots import OWN, PooledDemo, as_text, messages_of
from plr_dspy.programs.splits import Examples, by_content, mixed, shown_by, source_of, value_key
from plr_dspy.programs.tokens import token_counter
from plr_dspy.report.schema import ErrorCount
from plr_dspy.report.text import count
from plr_dspy.scoring.causes import cure_of
from plr_dspy.scoring.run_log import CallRecord, error_counts

logger = logging.getLogger(__name__)

# Share of the trainset that demos are made of, and the most examples. The other three quarters score: chance moves a
# score by 1 / sqrt(4 n), which is 15 % more than on all examples. A search of some hundred calls tells more than 50
# demos apart no better than it tells 50.
POOL_SHARE, LARGEST_POOL = 0.25, 50
ATTEMPTS = 2  # examples that a teacher is run on, at most, for each demo wanted: an attempt that fails makes none
NOT_KNOWN = "..."  # stands for what a teacher will answer


def demo_examples(trainset: Examples, valset: Examples, rng: random.Random) -> dict[int, dspy.Example]:
    """Return the examples that become demos by their numbers, with distinct inputs and evenly mixed classes.

    They do not depend on the order of the trainset. Examples with equal inputs count once for the share. Those whose
    inputs the valset has are left to it.
    """
    sources = [source_of(example.inputs()) for example in trainset]
    taken = {source_of(example.inputs()) for example in valset}
    number = min(LARGEST_POOL, round(POOL_SHARE * len(set(sources) - taken)))
    labels = [value_key(dict(example.labels().items())) for example in trainset]
    chosen: dict[int, dspy.Example] = {}
    for index in mixed(by_content(trainset), labels, rng, balanced=True):
        if len(chosen) < number and sources[index] not in taken:
            taken.add(sources[index])
            chosen[index] = trainset[index]
    return chosen


def pools_of(
    program: dspy.Module, *, labelled: Mapping[int, dspy.Example], attempts: Sequence[Attempt], given: Sequence[Any]
) -> dict[str, list[PooledDemo]]:
    """Return the pool of each predictor: demos that its prompt shows, each text once.

    The student's own come first. Then come those of attempts, labelled examples by their numbers in the trainset, and
    the user's list.
    """
    count = token_counter()
    others: list[tuple[Any, str]] = [(example, f"trainset[{number}]") for number, example in labelled.items()]
    others += [(demo, f"candidates[{number}]") for number, demo in enumerate(given)]
    pools = {}
    for name, predictor in program.named_predictors():
        demos: list[tuple[Any, str]] = [(demo, OWN) for demo in predictor.demos]
        for attempt in attempts:
            if name in attempt.demos:
                demos.append((attempt.demos[name], f"bootstrapped from trainset[{attempt.example}]"))
        without_demos = messages_of(predictor, [])
        seen = {as_text(without_demos)}
        pool = []
        for demo, origin in demos + others:
            messages = messages_of(predictor, [demo])
            text = as_text(messages)
            if text not in seen or (origin == OWN and text != as_text(without_demos)):
                seen.add(text)
                pool.append(PooledDemo(demo, origin, count(messages) - count(without_demos)))
        pools[name] = pool
    return pools


def stand_ins(
    program: dspy.Module, examples: Mapping[int, dspy.Example], wanted: int, *, beside_labelled: bool
) -> list[Attempt]:
    """Return the attempts at this many demos before they are made.

    They have demos for predictors whose fields the examples lack. Beside labelled examples that have all outputs, which
    are labels, there are none: a right answer would add nothing.
    """
    predictors = program.named_predictors()
    outputs: set[str] = set()
    labels: set[str] = set()
    for _, predictor in predictors:
        outputs.update(predictor.signature.output_fields)
        labels.update(output.name for output in label_outputs("", predictor))
    if beside_labelled and labels == outputs and all(outputs <= dict(each).keys() for each in examples.values()):
        return []
    attempts = []
    for index, example in islice(examples.items(), ATTEMPTS * wanted):
        known = {field: value for field, value in example.items() if value is not None}
        demos = {}
        for name, predictor in predictors:
            fields = predictor.signature.fields
            if not fields.keys() <= known.keys():
                demos[name] = dspy.Example({**dict.fromkeys(fields, NOT_KNOWN), **known})
        attempts.append(Attempt(index, ("", str(index)), demos, CallRecord(None)))
    return attempts


class TeacherWork(MetricWork):
    """Runs the teacher of a compile, or its student, on examples; cells hold the demos that right answers make.

    A teacher without demos that no optimizer has compiled is shown labelled examples, as by DSPy's `BootstrapFewShot`;
    DSPy's `trace` is passed to metrics that take three arguments. Teacher and student must be of the same structure.
    """

    ways_out = (
        " of the teacher's calls that make demos. If the teacher is at fault, pass another one, or "
        "candidates='labeled', which needs none where the examples have the outputs; a larger max_errors allows more "
        "failures"
    )

    def __init__(self, setup: CompileSetup) -> None:
        options = setup.options
        examples = list(setup.demo_examples.values())
        super().__init__(options.metric, examples)
        if takes(function_of(options.metric), 3):
            self._metric = lambda example, prediction: options.metric(example, prediction, dspy.settings.trace)
        self._threshold = options.metric_threshold
        teacher = setup.program if setup.teacher is None else setup.teacher
        _check_structure(setup, teacher)
        asked = teacher.named_predictors()
        labelled: dict[str, list[Any]] = {}
        is_bare = not any(predictor.demos for _, predictor in asked)
        if is_bare and (setup.teacher is None or not is_compiled(teacher)):
            rng = random.Random(0)  # As LabeledFewShot, which itself would take the program's model away.
            number = min(options.max_demos, len(examples))
            labelled = {name: rng.sample(examples, number) for name, _ in asked}
        self.teacher = ProgramFactory(teacher).build(labelled)
        self.models += language_models(self.teacher)
        # By the names of the student's predictors, which differ if it is calibrated.
        self._predictors: dict[str, dspy.Predict] = {}
        for (name, _), predictor in zip(setup.program.named_predictors(), self.teacher.predictors(), strict=True):
            self._predictors[name] = predictor
        self._demos = {name: list(predictor.demos) for name, predictor in self._predictors.items()}

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Run the teacher on an example, without its demos that show this example."""
        for name, predictor in self._predictors.items():
            predictor.demos = [demo for demo in self._demos[name] if not shown_by([demo], [self.examples[example]])]
        prediction = self._answered(self.teacher, example)
        trace = list(dspy.settings.trace)
        score = self._scored(example, prediction).score or 0.0
        if score <= 0 if self._threshold is None else score < self._threshold:
            return CallRecord(None, message=f"scored {score:g}", value={})
        fields = {}
        for name, demos in self._demos_in(trace).items():
            *earlier, demo = demos
            if earlier:  # Of several calls the last one or an earlier one, drawn as by DSPy.
                rng = random.Random(Hasher.hash(tuple(demos)))
                demo = rng.choice(earlier) if rng.random() < 0.5 else demo
            # The program may write to what it has answered.
            fields[name] = {field: own_value(value) for field, value in demo.items()}
        return CallRecord(None, value=fields)

    def _demos_in(self, trace: Sequence[Any]) -> dict[str, list[dspy.Example]]:
        """Return the demos that the calls in a trace make, by predictor."""
        stages = Counter(predictor.stage for predictor in self._predictors.values())
        demos: dict[str, list[dspy.Example]] = defaultdict(list)
        for name, predictor in self._predictors.items():
            stage = predictor.stage
            for caller, inputs, outputs in trace:
                # Modules such as dspy.BestOfN run copies, which keep the stage.
                if caller is predictor or (stages[stage] == 1 and getattr(caller, "stage", "") == stage):
                    demos[name].append(dspy.Example({"augmented": True, **inputs, **outputs}))
        return demos


def _check_structure(setup: CompileSetup, teacher: dspy.Module) -> None:
    """Raise unless the teacher has the predictors of the student."""
    student = setup.program
    asked = teacher.named_predictors()
    needed = student.named_predictors()
    names = [name for name, _ in asked]
    of_student = [name for name, _ in needed]
    if names != of_student:
        raise UserError(f"teacher must be a program with the predictors of student, {of_student}; it has {names}")
    for (name, one), (_, other) in zip(asked, needed, strict=True):
        if not one.signature.equals(other.signature):
            raise UserError(
                f"teacher must ask as student does, and predictor {name!r} has other instructions or fields: give "
                "it student's signature"
            )


def make_attempts(setup: CompileSetup, teaching: ProgramEvaluator) -> tuple[list[Attempt], bool]:
    """Run the teacher of a compile on one example after the other, until enough of its answers were right.

    Returns:
        The attempts, and whether calls, or the share of money or time, ended them early.
    """
    options = setup.options
    log = teaching.log
    budget = teaching.budget
    of_student = budget.expected_cost
    prompt = f"bootstrapped by {digest([setup.teacher, options.metric_threshold, options.max_demos, setup.seed])}"
    contents = list(map(digest, setup.demo_examples.values()))
    log.number_examples(contents)
    if setup.teacher is not None:
        budget.expect(None if options.max_cost is None else size_of_call(setup, setup.teacher).cost)
    budget.share = BOOTSTRAP_SHARE
    attempts: list[Attempt] = []
    ended_early = False
    for index, number in enumerate(list(setup.demo_examples)[: len(setup.attempts)]):
        if sum(bool(attempt.demos) for attempt in attempts) >= options.max_bootstrapped:
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
    if setup.teacher is not None:
        budget.expect(of_student)
    num_right = sum(bool(attempt.demos) for attempt in attempts)
    if num_right:
        logger.info("bootstrapped demos from %d of %d examples", num_right, len(attempts))
    elif attempts:
        _warn_of_none(attempts, options.metric_threshold)
    return attempts, ended_early


def _warn_of_none(attempts: Sequence[Attempt], least: float | None) -> None:
    """Warn that no attempt made a demo, with all reasons and the cure of the most frequent one."""
    reasons: list[tuple[int, str, str]] = []  # number of attempts, what they did, cure
    for error in attempt_errors(attempts):
        if error.type == AdapterParseError.__name__:
            otherwise = adapter_advice()
        elif error.message.startswith("in the metric:"):
            otherwise = "mend the metric, or what it calls"
        else:
            otherwise = "mend the program, or pass another teacher"
        cure = cure_of([error.type], otherwise=otherwise)
        reasons.append((error.count, f"ended in {error.type} ({error.message})", cure))
    answered = [attempt.cell for attempt in attempts if not attempt.cell.error]
    num_low = sum(bool(record.message) for record in answered)
    if num_low:
        limit = "0 or less" if least is None else f"less than metric_threshold={least:g}"
        cure = "see that the metric compares the right fields, or pass a better teacher or another metric_threshold"
        reasons.append((num_low, f"gave an answer that scored {limit}", cure))
    num_unseen = len(answered) - num_low
    if num_unseen:
        text = "gave a right answer by calls that DSPy's trace does not hold, as of plain threads"
        cure = "start threads with dspy.Parallel, dspy.asyncify or contextvars.copy_context, and keep DSPy's trace"
        reasons.append((num_unseen, text, cure))
    _, _, cure = max(reasons, key=lambda reason: reason[0])
    logger.warning(
        "no demo was bootstrapped: of %d calls of the teacher, %s. Only the other demos can be chosen, if there "
        "are any. To make some, %s",
        len(attempts),
        ", ".join(f"{number} {text}" for number, text, _ in reasons),
        cure,
    )


def attempt_errors(attempts: Sequence[Attempt]) -> list[ErrorCount]:
    """Count the attempts that ended in an exception, by its type."""
    cells = [(("", each.example), replace(each.cell, outcome="gave no demo")) for each in attempts]
    return error_counts(cells, {each.example: f"trainset[{each.example}]" for each in attempts})

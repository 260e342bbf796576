"""What PLFewShot chooses from: the student's own demos, labelled examples, and what a teacher's right answers make."""

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import dspy
import orjson
from dspy.predict.predict import serialize_object
from dspy.utils.hasher import Hasher

from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import label_outputs
from plr_dspy.metrics.by_example import takes_trace
from plr_dspy.optimizer.job import BOOTSTRAP_SHARE, Attempt, Job, cost_of_attempt, token_counter
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator, WrongAnswer
from plr_dspy.programs.copies import ProgramFactory, language_models
from plr_dspy.programs.identity import digest
from plr_dspy.programs.slots import OWN, PooledDemo, as_text, demo_messages
from plr_dspy.programs.splits import Examples, by_content, label_keys, mixed, shown_by, source_of
from plr_dspy.report.data import ErrorCount
from plr_dspy.report.text import count
from plr_dspy.runtime import as_json
from plr_dspy.scoring.ledger import Cell, error_counts

logger = logging.getLogger(__name__)

POOL_SHARE, LARGEST_POOL = 0.25, 50
"""Share of the trainset that demos are made of, and the most examples.

The other three quarters score: chance moves a score by 1 / sqrt(4 n), which is 15 % more than on all examples. A search
of some hundred calls tells more than 50 demos apart no better than it tells 50."""

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
    for index in mixed(by_content(trainset), label_keys(trainset), rng, balanced=True):
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
        no_demos = demo_messages(predictor, [])
        tokens_before, nothing = count(messages=no_demos), as_text(no_demos)
        seen, pool = {nothing}, []
        for demo, origin in [*own, *made, *others]:
            messages = demo_messages(predictor, [demo])
            text = as_text(messages)
            if text != nothing and (text not in seen or origin == OWN):
                seen.add(text)
                pool.append(PooledDemo(demo, origin, int(count(messages=messages) - tokens_before)))
        pools[name] = pool
    return pools


def labels_say_all(program: dspy.Module, examples: Mapping[int, dspy.Example]) -> bool:
    """Whether all that the predictors answer are labels which the examples have: a right answer adds nothing."""
    predictors = program.predictors()
    outputs = {name for predictor in predictors for name in predictor.signature.output_fields}
    labels = {output.name for predictor in predictors for output in label_outputs("", predictor)}
    return labels == outputs and all(outputs <= dict(example).keys() for example in examples.values())


def stand_ins(program: dspy.Module, examples: Mapping[int, dspy.Example], number: int) -> list[Attempt]:
    """Return so many attempts before they are made, with demos for predictors whose fields the examples lack."""
    needed = {name: predictor.signature.fields for name, predictor in program.named_predictors()}
    attempts = []
    for index, example in islice(examples.items(), number):
        known = {field: value for field, value in example.items() if value is not None}
        demos = {
            name: dspy.Example({**dict.fromkeys(fields, NOT_KNOWN), **known})
            for name, fields in needed.items()
            if not fields.keys() <= known.keys()
        }
        attempts.append(Attempt(index, ("", str(index)), demos, Cell(None)))
    return attempts


class TeacherWork(MetricWork):
    """Runs the teacher of a job, or its student, on examples; cells hold the demos that right answers make.

    A teacher without demos that no optimizer has compiled is shown labelled examples, as by DSPy's `BootstrapFewShot`;
    DSPy's `trace` is passed to metrics that take three arguments. Teacher and student must be of the same structure.
    """

    def __init__(self, job: Job) -> None:
        optimizer: Any = job.optimizer
        examples = list(job.demo_examples.values())
        super().__init__(optimizer.metric, examples)
        if takes_trace(optimizer.metric):
            self._metric = lambda example, prediction: optimizer.metric(example, prediction, dspy.settings.trace)
        self._threshold = optimizer.metric_threshold
        teacher = job.program if job.teacher is None else job.teacher
        asked, needed = teacher.named_predictors(), job.program.named_predictors()
        student: Any = job.program
        if isinstance(student, CalibratedProgram) and job.teacher is not None:
            student = student.program  # The teacher has no calibration.
        names, of_student = [name for name, _ in asked], [name for name, _ in student.named_predictors()]
        if names != of_student:
            raise ValueError(f"teacher must be a program with the predictors of student, {of_student}; it has {names}")
        for (name, one), (_, other) in zip(asked, needed, strict=True):
            if not one.signature.equals(other.signature):
                raise ValueError(
                    f"teacher must ask as student does, and predictor {name!r} has other instructions or fields: give "
                    "it student's signature"
                )
        labelled: dict[str, list[Any]] = {}
        without = not any(each.demos for _, each in asked)
        if without and (job.teacher is None or not getattr(teacher, "_compiled", False)):
            rng = random.Random(0)  # as LabeledFewShot, which itself would take the program's model away
            number = min(optimizer.max_demos, len(examples))
            labelled = {name: rng.sample(examples, number) for name in names}
        self.teacher = ProgramFactory(teacher).build(labelled)
        self.models += language_models(self.teacher)
        predictors = zip(needed, self.teacher.named_predictors(), strict=True)
        self._shown = {name: (each, list(each.demos)) for (name, _), (_, each) in predictors}

    def __call__(self, program: dspy.Module, example: int) -> Cell:
        """Run the teacher on an example, without its demos that show this example."""
        for predictor, shown in self._shown.values():
            predictor.demos = [demo for demo in shown if not shown_by([demo], [self._examples[example]])]
        try:
            with self._answering(example) as asked:
                prediction = self.teacher(**asked.inputs())
        except WrongAnswer as wrong:
            wrong.told = {"value": {}}
            raise
        trace = list(dspy.settings.trace)
        score = self._scored(asked, prediction).score or 0.0
        if score <= 0 if self._threshold is None else score < self._threshold:
            return Cell(None, value={})
        made: dict[str, list[dspy.Example]] = defaultdict(list)
        stages = Counter(predictor.stage for predictor, _ in self._shown.values())
        for name, (predictor, _) in self._shown.items():
            for asking, inputs, outputs in trace:
                # Modules such as dspy.BestOfN run copies, which keep the stage.
                if asking is predictor or (
                    stages[predictor.stage] == 1 and getattr(asking, "stage", "") == predictor.stage
                ):
                    made[name].append(dspy.Example(augmented=True, **inputs, **outputs))
        chosen = {name: _one_of(demos) for name, demos in made.items()}
        plain = {name: serialize_object(dict(demo.items())) for name, demo in chosen.items()}
        # As they will be read from the ledger: as those of a saved program are.
        return Cell(None, value=orjson.loads(as_json(plain)))


def _one_of(demos: Examples) -> dspy.Example:
    """Of a predictor that is asked several times for an answer, the last demo or an earlier one, drawn as by DSPy."""
    if len(demos) == 1:
        return demos[0]
    rng = random.Random(Hasher.hash(tuple(demos)))
    return rng.choice(demos[:-1]) if rng.random() < 0.5 else demos[-1]


def teacher_of(job: Job, evaluator: Callable[..., ProgramEvaluator]) -> ProgramEvaluator:
    """Make what runs the teacher of a job on examples, as an evaluator of the compile."""
    teaching = evaluator(
        job.slots,
        TeacherWork(job),
        names=[f"trainset[{number}]" for number in job.demo_examples],
        num_threads=1,
        ways_out=(
            " of the teacher's calls that make demos. If the teacher is at fault, pass another one, or "
            "candidates='labeled', which needs none where the examples have the outputs; a larger max_errors allows "
            "more failures"
        ),
    )
    teaching.ledger.number_examples(list(map(digest, job.demo_examples.values())))
    return teaching


def make_attempts(job: Job, teaching: ProgramEvaluator) -> tuple[list[Attempt], Any]:
    """Run the teacher of a job on one example after the other, until so many of its answers were right.

    When calls, or the share of money or time, are up, the attempts made are all there will be; what the ledger is to
    note of that is returned, too.
    """
    optimizer: Any = job.optimizer
    ledger, budget, of_student = teaching.ledger, teaching.budget, teaching.budget.expected
    prompt = f"bootstrapped by {digest([job.teacher, optimizer.metric_threshold, optimizer.max_demos, job.seed])}"
    contents = list(map(digest, job.demo_examples.values()))
    if job.teacher is not None:
        budget.expect(None if optimizer.max_cost is None else cost_of_attempt(job))
    budget.allow(BOOTSTRAP_SHARE)
    limits = [budget.max_seconds, budget.max_cost, budget.max_calls]
    attempts, ended = list[Attempt](), None
    for i, number in enumerate(list(job.demo_examples)[: len(job.attempts)]):
        if sum(bool(each.demos) for each in attempts) >= optimizer.max_bootstrapped:
            break
        end = [prompt, optimizer.candidates, *limits, i]
        if end in ledger.out_of_time:  # A part that goes on has the demos that it had.
            break
        if (prompt, i) not in ledger.cells:
            teaching.pay({(prompt, i): None})
        if (prompt, i) not in ledger.cells:
            told = "bootstrapping, which has a quarter of time and money, ended after %s: %s"
            logger.warning(told, count(i, "example"), budget.refused)
            ended = end
            break
        cell = ledger.cells[prompt, i]
        demos = {predictor: dspy.Example(**fields) for predictor, fields in (cell.value or {}).items()}
        attempts.append(Attempt(number, (prompt, contents[i]), demos, cell))
    ledger.settle()
    budget.allow(1.0)
    if job.teacher is not None:
        budget.expect(of_student)
    if num_right := sum(bool(each.demos) for each in attempts):
        logger.info("bootstrapped demos from %d of %d examples", num_right, len(attempts))
    elif attempts:
        errors = attempt_errors(attempts)
        reasons = [f"{error.count} ended in {error.type} ({error.message})" for error in errors]
        if others := len(attempts) - sum(error.count for error in errors):
            least = optimizer.metric_threshold
            scored = "0 or less" if least is None else f"less than metric_threshold={least:g}"
            unseen = "or one of calls that DSPy's trace does not hold, as of plain threads"
            reasons.append(f"{others} gave an answer that scored {scored}, {unseen}")
        logger.warning(
            "no demo was bootstrapped: of %d calls of the teacher, %s. Only the other demos can be chosen, if there "
            "are any; another teacher may do better, or another metric_threshold",
            len(attempts),
            ", ".join(reasons),
        )
    return attempts, ended


def attempt_errors(attempts: Sequence[Attempt]) -> list[ErrorCount]:
    """Count the attempts that ended in an exception, by its type."""
    cells = [(("", each.example), replace(each.cell, outcome="gave no demo")) for each in attempts]
    return error_counts(cells, {each.example: f"trainset[{each.example}]" for each in attempts})

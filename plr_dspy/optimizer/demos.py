"""What PLFewShot chooses from, such as demos that a teacher's right answers make."""

import logging
import random
from collections import Counter
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
from plr_dspy.scoring.causes import cure_of
from plr_dspy.scoring.run_log import CallRecord, error_counts

logger = logging.getLogger(__name__)

# Share of the trainset that demos are made of, and the most examples; the others score.
POOL_SHARE, LARGEST_POOL = 0.25, 50
ATTEMPTS = 2  # examples that a teacher is run on, at most, for each demo wanted
NOT_KNOWN = "..."  # stands for what a teacher will answer


def demo_examples(trainset: Examples, valset: Examples, rng: random.Random) -> dict[int, dspy.Example]:
    """Return the examples that become demos by their numbers, with distinct inputs and evenly mixed classes.

    They do not depend on the order of the trainset, and have no inputs of the valset.
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

    The student's own come first, then those of attempts, labelled examples, and the user's list.
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
    """Return the attempts at this many demos before they are made, with demos that stand in for theirs.

    Beside labelled examples that have all outputs, which are labels, there are none: a right answer would add nothing.
    """
    predictors = program.named_predictors()
    outputs: set[str] = set()
    labels: set[str] = set()
    for _, predictor in predictors:
        outputs.update(predictor.signature.output_fields)
        labels.update(output.name for output in label_outputs("", predictor))
    are_labelled = all(labels <= dict(example).keys() for example in examples.values())
    if beside_labelled and labels == outputs and are_labelled:
        return []
    attempts = []
    for index, example in islice(examples.items(), ATTEMPTS * wanted):
        known = {field: value for field, value in example.items() if value is not None}
        demos = {}
        for name, predictor in predictors:
            fields = predictor.signature.fields
            if not (beside_labelled and fields.keys() <= known.keys()):
                demos[name] = dspy.Example({**dict.fromkeys(fields, NOT_KNOWN), **known})
        attempts.append(Attempt(index, ("", str(index)), demos, CallRecord(None)))
    return attempts


class TeacherWork(MetricWork):
    """Runs the teacher of a compile on examples, as DSPy's `BootstrapFewShot` does; records hold the demos.

    So a teacher without demos that no optimizer has compiled is shown labelled examples, and metrics that take three
    arguments get DSPy's trace.
    """

    ways_out = " of the teacher's calls that make demos: pass another teacher, candidates='labeled' or max_errors"

    def __init__(self, setup: CompileSetup) -> None:
        options = setup.options
        examples = list(setup.demo_examples.values())
        super().__init__(options.metric, examples)
        if takes(function_of(options.metric), 3):
            self._metric = lambda example, prediction: options.metric(example, prediction, dspy.settings.trace)
        self._threshold = options.metric_threshold
        teacher = setup.program if setup.teacher is None else setup.teacher
        _check_structure(setup.program, teacher)
        labelled: dict[str, list[Any]] = {}
        is_bare = not any(predictor.demos for predictor in teacher.predictors())
        if is_bare and (setup.teacher is None or not is_compiled(teacher)):
            rng = random.Random(0)  # As LabeledFewShot, which itself would take the program's model away.
            number = min(options.max_demos, len(examples))
            labelled = {name: rng.sample(examples, number) for name, _ in teacher.named_predictors()}
        self.teacher = ProgramFactory(teacher).build(labelled)
        self.models += language_models(self.teacher)
        self._predictors: dict[str, dspy.Predict] = dict(self.teacher.named_predictors())
        self._demos = {name: list(predictor.demos) for name, predictor in self._predictors.items()}

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Run the teacher on an example, without its demos that show this example."""
        for name, predictor in self._predictors.items():
            predictor.demos = [demo for demo in self._demos[name] if not shown_by([demo], [self.examples[example]])]
        prediction = self._answered(self.teacher, example)
        trace = list(dspy.settings.trace)
        score = self._scored(example, prediction).score or 0.0
        is_right = score > 0 if self._threshold is None else score >= self._threshold
        if not is_right:
            return CallRecord(None, message=f"scored {score:g}", value={})
        fields = {}
        for name, predictor in self._predictors.items():
            calls = [(inputs, outputs) for caller, inputs, outputs in trace if caller is predictor]
            demos = [dspy.Example({"augmented": True, **inputs, **outputs}) for inputs, outputs in calls]
            if not demos:
                continue
            *earlier, demo = demos
            if earlier:  # Of several calls the last one or an earlier one, drawn as by DSPy.
                rng = random.Random(Hasher.hash(tuple(demos)))
                demo = rng.choice(earlier) if rng.random() < 0.5 else demo
            # The program may write to what it has answered.
            fields[name] = {field: own_value(value) for field, value in demo.items()}
        return CallRecord(None, value=fields)


def _check_structure(student: dspy.Module, teacher: dspy.Module) -> None:
    """Raise unless the teacher has the predictors of the student, with equal signatures."""
    signatures = {name: predictor.signature for name, predictor in teacher.named_predictors()}
    needed = {name: predictor.signature for name, predictor in student.named_predictors()}
    if list(signatures) != list(needed) or not all(needed[name].equals(signatures[name]) for name in needed):
        raise UserError(
            f"teacher must be a program with the predictors of student, {list(needed)}, and their instructions and "
            f"fields; it has {list(signatures)}: give it those of student"
        )


def make_attempts(setup: CompileSetup, teaching: ProgramEvaluator) -> list[Attempt]:
    """Run the teacher of a compile on one example after the other, until enough of its answers were right."""
    options = setup.options
    log = teaching.log
    budget = teaching.budget
    cost_of_student = budget.expected_cost
    prompt = f"bootstrapped by {digest([setup.teacher, options.metric_threshold, options.max_demos, setup.seed])}"
    contents = list(map(digest, setup.demo_examples.values()))
    log.number_examples(contents)
    if setup.teacher is not None:
        budget.expect(None if options.max_cost is None else size_of_call(setup, setup.teacher).cost)
    budget.share = BOOTSTRAP_SHARE
    attempts: list[Attempt] = []
    num_right = 0
    for index, number in enumerate(list(setup.demo_examples)[: len(setup.attempts)]):
        if num_right >= options.max_bootstrapped:
            break
        key = (prompt, index)
        if not budget.recall(key):
            teaching.pay({key: None})
        if key not in log.records:
            logger.warning("bootstrapping ended after %d examples, for it has a quarter of time and money", index)
            break
        record = log.records[key]
        demos = {predictor: dspy.Example(fields) for predictor, fields in (record.value or {}).items()}
        num_right += bool(demos)
        attempts.append(Attempt(number, (prompt, contents[index]), demos, record))
    budget.share = 1.0
    if setup.teacher is not None:
        budget.expect(cost_of_student)
    if not num_right:
        logger.warning("no demo was bootstrapped%s", why_none(attempts))
    return attempts


def why_none(attempts: Sequence[Attempt]) -> str:
    """Return why no attempt made a demo, by the most frequent error, and what to do; as the end of a sentence."""
    errors = Counter(attempt.cell.error for attempt in attempts if attempt.cell.error)
    if not attempts:
        return ": a quarter of max_seconds or max_cost is too little for a call: raise it"
    if errors.total() <= len(attempts) / 2:
        return (
            f": none of {len(attempts)} calls of the teacher gave an answer that scores enough, and that DSPy's trace "
            "holds: see that the metric compares the right fields, and start threads with dspy.Parallel"
        )
    ((error, number),) = errors.most_common(1)
    cure = "mend the program or the metric, or pass another teacher"
    if error == AdapterParseError.__name__:
        cure = adapter_advice()
    return f": {number} of {len(attempts)} calls of the teacher ended in {error}: {cure_of([error], otherwise=cure)}"


def attempt_errors(attempts: Sequence[Attempt]) -> list[ErrorCount]:
    """Count the attempts that ended in an exception, by its type."""
    records = [(("", attempt.example), replace(attempt.cell, outcome="gave no demo")) for attempt in attempts]
    return error_counts(records, {attempt.example: f"trainset[{attempt.example}]" for attempt in attempts})

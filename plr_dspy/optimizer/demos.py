"""The demos that PLFewShot chooses from, including demos bootstrapped from a teacher's correct answers."""

import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import dspy

from plr_dspy.dspy_compat import (
    AdapterParseError,
    Hasher,
    format_field_value,
    is_compiled,
    serialize_for_json,
)
from plr_dspy.errors import UserError
from plr_dspy.labels.outputs import is_empty, label_outputs
from plr_dspy.metrics.by_example import function_of, takes
from plr_dspy.optimizer.call_sizes import CallSizes, answered_fields
from plr_dspy.optimizer.prompt_sizes import tokens_of_demos
from plr_dspy.optimizer.setup import UNKNOWN_ANSWER, Attempt, CompileSetup
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator, adapter_advice
from plr_dspy.programs.copying import ProgramFactory, language_models
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.instructions import OWN
from plr_dspy.programs.rivals import Rival
from plr_dspy.programs.slots import PooledDemo, as_text, messages_of
from plr_dspy.programs.splits import Examples, by_content, mixed, shown_by, source_of, value_key
from plr_dspy.report.formats import count
from plr_dspy.scoring.causes import fix_for
from plr_dspy.scoring.run_log import CallRecord

logger = logging.getLogger(__name__)

POOL_SHARE = 0.25  # share of the trainset that becomes demos; the rest is for scoring
LARGEST_POOL = 50  # maximum number of examples that become demos
MAX_ATTEMPTS = 2  # maximum number of teacher calls per demo to bootstrap
BOOTSTRAP_SHARE = 0.25  # maximum share of max_seconds and max_cost for bootstrapping


def demo_examples(trainset: Examples, valset: Examples, rng: random.Random) -> dict[int, dspy.Example]:
    """Return the trainset examples to use as demos, keyed by trainset index.

    The inputs of these examples are distinct and do not occur in the valset. The choice is
    stratified by class and does not depend on the trainset's order.
    """
    sources = [source_of(example.inputs()) for example in trainset]
    used_sources = {source_of(example.inputs()) for example in valset}
    labels = [value_key(dict(example.labels().items())) for example in trainset]
    usable = []
    for index in mixed(by_content(trainset), labels, rng, balanced=True):
        if sources[index] not in used_sources:
            used_sources.add(sources[index])
            usable.append(index)
    pool_size = min(LARGEST_POOL, round(POOL_SHARE * len(usable)))
    return {index: trainset[index] for index in usable[:pool_size]}


def check_any_demo(
    program: dspy.Module,
    rivals: Sequence[Rival],
    demos: Sequence[Any],
    *,
    trainset: Examples,
    valset: Examples,
) -> None:
    """Raise a ValueError if `demos`, the student and the user's programs contain no demos at all."""
    has_demos = bool(demos) or any(predictor.demos for predictor in program.predictors())
    if has_demos or any(rival.demos for rival in rivals):
        return
    used_inputs = {source_of(example.inputs()) for example in valset}
    new_inputs = {source_of(example.inputs()) for example in trainset} - used_inputs
    raise UserError(
        "trainset must have enough distinct inputs that are not in valset, because some examples become demos; got "
        f"{count(len(new_inputs), 'such input')} in {count(len(trainset), 'example')}: add examples with new "
        "inputs, for a total of at least 20 and ideally 100"
    )


def pools_of(
    program: dspy.Module,
    *,
    labeled: Mapping[int, dspy.Example],
    attempts: Sequence[Attempt],
    user_demos: Sequence[Any],
    rivals: Sequence[Rival],
) -> dict[str, list[PooledDemo]]:
    """Return the pool of each predictor: the distinct demos that its prompts can show.

    The student's own demos come first, followed by rivals' demos, bootstrapped demos, labeled
    examples and the user's `candidates`. Duplicates are kept only among the student's own demos.
    """
    pools = {}
    for name, predictor in program.named_predictors():
        demos: list[tuple[Any, str]] = [(demo, OWN) for demo in predictor.demos]
        for rival in rivals:
            match = rival.matching(name, predictor)
            if match is not None:
                demos += [(demo, rival.name) for demo in match.demos]
        for attempt in attempts:
            if name in attempt.demos:
                demos.append((attempt.demos[name], f"bootstrapped from trainset[{attempt.example}]"))
        for number, example in labeled.items():
            demos.append((_without_empty_outputs(predictor, example), f"trainset[{number}]"))
        demos += [(demo, f"candidates[{number}]") for number, demo in enumerate(user_demos)]
        no_text = as_text(messages_of(predictor, []))
        seen = {no_text}
        distinct = []
        for demo, origin in demos:
            text = as_text(messages_of(predictor, [demo]))
            if text not in seen or (origin == OWN and text != no_text):
                seen.add(text)
                distinct.append((demo, origin))
        tokens = tokens_of_demos(predictor, [demo for demo, _ in distinct])
        pools[name] = [
            PooledDemo(demo, origin, number)
            for (demo, origin), number in zip(distinct, tokens, strict=True)
        ]
    return pools


def _without_empty_outputs(predictor: dspy.Predict, example: dspy.Example) -> dspy.Example:
    """Return an example without empty outputs, so that no prompt shows None or NaN as the answer."""
    empty = []
    for name, field in predictor.signature.output_fields.items():
        # An empty string may be the right answer.
        is_text = field.annotation is str and isinstance(example.get(name), str)
        if name in example and not is_text and is_empty(example[name], field.annotation):
            empty.append(name)
    return example.without(*empty) if empty else example


def plan_attempts(
    program: dspy.Module, examples: Mapping[int, dspy.Example], num_demos: int, *, with_labeled: bool
) -> list[Attempt]:
    """Return planned attempts to bootstrap demos, at most `MAX_ATTEMPTS` times `num_demos` attempts.

    In the planned demos, placeholders stand for the teacher's answers. If `with_labeled` is true
    and all outputs are labels that the examples contain, return an empty list: correct answers
    would only repeat these labels.
    """
    predictors = program.named_predictors()
    outputs: set[str] = set()
    labels: set[str] = set()
    for _, predictor in predictors:
        outputs.update(predictor.signature.output_fields)
        labels.update(output.name for output in label_outputs("", predictor))
    have_labels = all(labels <= dict(example).keys() for example in examples.values())
    if with_labeled and labels == outputs and have_labels:
        return []
    attempts = []
    for index, example in islice(examples.items(), MAX_ATTEMPTS * num_demos):
        demos = {}
        for name, predictor in predictors:
            fields = predictor.signature.fields
            known_fields = answered_fields(predictor, example)
            if not (with_labeled and fields.keys() <= known_fields.keys()):
                demos[name] = dspy.Example({**dict.fromkeys(fields, UNKNOWN_ANSWER), **known_fields})
        attempts.append(Attempt(index, ("", str(index)), demos, CallRecord(None)))
    return attempts


def teacher_of(setup: CompileSetup) -> dspy.Module:
    """Return a copy of the teacher, or of the student if there is no teacher.

    A teacher without demos shows labeled examples, unless it is a compiled program other than the
    student.
    """
    teacher = setup.program if setup.teacher is None else setup.teacher
    labeled: dict[str, list[Any]] = {}
    has_demos = any(predictor.demos for predictor in teacher.predictors())
    if not has_demos and (setup.teacher is None or not is_compiled(teacher)):
        # `LabeledFewShot` would draw the same demos, but its copy would lack the program's model.
        rng = random.Random(0)
        examples = list(setup.demo_examples.values())
        number = min(setup.options.max_demos, len(examples))
        labeled = {name: rng.sample(examples, number) for name, _ in teacher.named_predictors()}
    return ProgramFactory(teacher).build(labeled)


class TeacherWork(MetricWork):
    """Teacher calls whose correct answers become demos, as in DSPy's `BootstrapFewShot`.

    If the metric has a third parameter, this parameter gets DSPy's trace.
    """

    failure_advice = (
        " of the teacher: in Python, pass another teacher, candidates='labeled', or a larger max_errors"
    )

    def __init__(self, setup: CompileSetup) -> None:
        options = setup.options
        examples = list(setup.demo_examples.values())
        super().__init__(options.metric, examples)
        if takes(function_of(options.metric), 3):
            self._metric = lambda example, prediction: options.metric(
                example, prediction, dspy.settings.trace
            )
        self._threshold = options.metric_threshold
        _check_structure(setup.program, setup.program if setup.teacher is None else setup.teacher)
        self.teacher = teacher_of(setup)
        self.models += language_models(self.teacher)
        self._predictors: dict[str, dspy.Predict] = dict(self.teacher.named_predictors())
        self._demos = {name: list(predictor.demos) for name, predictor in self._predictors.items()}

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Run the teacher on an example, and return a record with the fields of each predictor's demo.

        The teacher's prompts omit demos that show this example. If the answer is incorrect, the
        record has no fields.
        """
        for name, predictor in self._predictors.items():
            predictor.demos = [
                demo for demo in self._demos[name] if not shown_by([demo], [self.examples[example]])
            ]
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
            if earlier:  # As in DSPy, draw either the last call or an earlier one.
                rng = random.Random(Hasher.hash(tuple(demos)))
                demo = rng.choice(earlier) if rng.random() < 0.5 else demo
            fields[name] = _json_fields(predictor, demo)
        return CallRecord(None, value=fields)


def _check_structure(student: dspy.Module, teacher: dspy.Module) -> None:
    """Raise a ValueError unless teacher and student have predictors with equal names and signatures."""
    teacher_signatures = {name: predictor.signature for name, predictor in teacher.named_predictors()}
    signatures = {name: predictor.signature for name, predictor in student.named_predictors()}
    fix = "build the teacher from the student's modules and signatures"
    if list(signatures) != list(teacher_signatures):
        raise UserError(
            f"teacher must have the student's predictors {list(signatures)}; got {list(teacher_signatures)}: {fix}"
        )
    different = [name for name in signatures if not signatures[name].equals(teacher_signatures[name])]
    if different:
        raise UserError(
            "teacher's predictors must have the same instructions and fields as the student's; got differences in "
            f"{', '.join(different)}: {fix}"
        )


def make_attempts(setup: CompileSetup, teacher: ProgramEvaluator) -> list[Attempt]:
    """Run the teacher on one example at a time, and return the attempts that were made.

    Stop once enough attempts have produced demos, or once the calls have used `BOOTSTRAP_SHARE` of
    `max_seconds` or `max_cost`.
    """
    options = setup.options
    log = teacher.log
    budget = teacher.budget
    student_cost = budget.expected_cost
    reserve = budget.largest_cost
    prompt = f"bootstrapped by {digest([setup.teacher, options.metric_threshold, options.max_demos, setup.seed])}"
    keys = list(map(digest, setup.demo_examples.values()))
    log.number_examples(keys)
    if setup.teacher is not None:
        sizes = CallSizes(setup)
        cost = None if options.max_cost is None else sizes.price(sizes.of_program(teacher_of(setup)))
        budget.expect(cost)
    budget.share = BOOTSTRAP_SHARE
    attempts: list[Attempt] = []
    predictors = dict(setup.program.named_predictors())
    num_right = 0
    for index, number in enumerate(list(setup.demo_examples)[: len(setup.attempts)]):
        if num_right >= options.max_bootstrapped:
            break
        key = (prompt, index)
        if not budget.recall(key):
            teacher.pay({key: None})
        if key not in log.records:
            logger.warning(
                "bootstrapping stopped after %s, because it may use only a quarter of max_seconds and "
                "max_cost: increase these limits to bootstrap more demos",
                count(index, "example"),
            )
            break
        record = log.records[key]
        demos = {name: _demo(predictors[name], fields) for name, fields in (record.value or {}).items()}
        num_right += bool(demos)
        attempts.append(Attempt(number, (prompt, keys[index]), demos, record))
    budget.share = 1.0
    if setup.teacher is not None:
        budget.expect(student_cost, reserve=reserve)
    if not num_right:
        logger.warning("no demo was bootstrapped%s", why_none(attempts))
    return attempts


def _json_fields(predictor: dspy.Predict, demo: dspy.Example) -> dict[str, Any]:
    """Return a demo's fields as JSON data. Most prompts show this data like the original values."""
    fields = {}
    for name, value in demo.items():
        info = predictor.signature.fields.get(name)
        data = serialize_for_json(value)
        if info is not None and info.annotation is str and isinstance(value, (list, tuple, set, frozenset)):
            # In a text field, DSPy formats lists differently from tuples and sets, but JSON data has
            # only lists. DSPy also formats list items differently from their JSON data.
            data = format_field_value(info, value)
        fields[name] = data
    return fields


def _demo(predictor: dspy.Predict, fields: Mapping[str, Any]) -> dspy.Example:
    """Return a demo with these recorded fields, and restore the original types of labels."""
    demo = dspy.Example(fields)
    for output in label_outputs("", predictor):
        recorded = demo.get(output.name)
        for label in output.labels.values():
            data = serialize_for_json(label)
            if type(data) is type(recorded) and data == recorded:
                demo[output.name] = label
                break
    return demo


def why_none(attempts: Sequence[Attempt]) -> str:
    """Return text that explains why no demo was bootstrapped and suggests a fix.

    The text completes a sentence such as "no demo was bootstrapped".
    """
    errors = Counter(attempt.record.error for attempt in attempts if attempt.record.error)
    if not attempts:
        return (
            ", because a quarter of max_seconds or max_cost is not enough for a single call: increase max_seconds or "
            "max_cost"
        )
    if errors.total() <= len(attempts) / 2:
        num_right = sum(not attempt.record.error and not attempt.record.message for attempt in attempts)
        if not num_right:
            return (
                f": none of the teacher's {count(len(attempts), 'answer')} scored high enough; check that the metric "
                "compares the right fields, or pass a better teacher"
            )
        return (
            f": {num_right} of the teacher's {len(attempts)} answers scored high enough, but none appeared in DSPy's "
            "trace; if the program starts threads, start them with dspy.Parallel"
        )
    ((error, number),) = errors.most_common(1)
    fix = "fix the program or the metric, or pass another teacher"
    if error == AdapterParseError.__name__:
        fix = adapter_advice()
    return f": {number} of the teacher's {len(attempts)} calls raised {error}; {fix_for([error], otherwise=fix)}"

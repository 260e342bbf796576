"""What is done with finished programs: they are loaded, and scored side by side, on examples new to all optimizers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, overload

import dspy
import numpy as np
from scipy import special

from plr_dspy.dspy_compat import magicattr, set_attribute_by_name
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.labels.calibrated_program import CalibratedProgram, PerInputOrder
from plr_dspy.labels.outputs import LabelOutput, label_output
from plr_dspy.labels.work import check_answers, label_scores
from plr_dspy.metrics.by_example import Metric, metric_caller
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.metrics.copies import own_value
from plr_dspy.programs.calls import MetricWork, calls_on, first_line
from plr_dspy.programs.checks import Checked, check_given, saved_state
from plr_dspy.programs.copying import ProgramFactory, language_models
from plr_dspy.programs.made_with import other_settings
from plr_dspy.programs.splits import Examples
from plr_dspy.retrieval.predict import loaded, retrieve_in
from plr_dspy.runtime import Redactor, progress_bar
from plr_dspy.scoring.causes import cause_of, cure_of
from plr_dspy.scoring.confusion_scores import ConfusionScores
from plr_dspy.scoring.run_log import FAILED, WRONG, CallRecord, RunLog
from plr_dspy.statistics.comparisons import mean_interval, paired_interval

logger = logging.getLogger(__name__)

ALONE = ""  # what a metric is called that has no name


def load_program(
    student: dspy.Module,
    path: str | Path,
    *,
    allow_pickle: bool = False,
    allow_unsafe_lm_state: bool = False,
    embedder: dspy.Embedder | None = None,
) -> dspy.Module:
    """Load a program that an optimizer returned, from the file that its ``save`` wrote.

    The student itself cannot load the file of a calibrated program.

    Args:
        student: The program that was compiled, created as it was then; it is not changed. It may be a larger program
            with calibrated parts: pass it with these parts as they were before they were calibrated.
        path: The file, of JSON, or a pickle (.pkl).
        allow_pickle: As in ``dspy.Module.load``: load a pickle, too. It can run any code, so allow it only for files
            that you trust. Programs need it that JSON cannot hold, such as those with sets in demos.
        allow_unsafe_lm_state: As in ``dspy.Module.load``: keep the addresses of language models that are saved with the
            program. Only for files that you trust.
        embedder: For a program whose demos are found by embeddings: what made these. It is not called to load.

    Returns:
        A copy of the student with the demos and instructions of the file. What was calibrated is a `CalibratedProgram`
        again, what orders demos for each input is a `PerInputOrder`, and predictors that found demos for each input do.

    Raises:
        OSError: when the file cannot be read.
        TypeError: when the student is no DSPy program, or the path none of a file.
        ValueError: when the file holds no saved program, or that of another student, or is a pickle that is not
            allowed.
    """
    if not isinstance(student, dspy.Module):
        raise UserTypeError(
            f"student must be a dspy.Module; got {type(student).__name__}: pass the one that was compiled"
        )
    state = saved_state(path, allow_pickle=allow_pickle)
    program = ProgramFactory(student).build({})
    try:
        if isinstance(state.get("orders"), list) and not isinstance(program, PerInputOrder):
            program = PerInputOrder(program)
        whole = SimpleNamespace(program=program)
        for name, saved in sorted(state.items(), key=lambda item: item[0].count(".")):  # What holds others comes first.
            place, _, last = f"program.{name}".rpartition(".")
            if last == "calibration" and "found" in saved:
                part = magicattr.get(whole, place)
                if not isinstance(part, CalibratedProgram):
                    set_attribute_by_name(whole, place, CalibratedProgram(part, predictor=saved["predictor"]))
        program = whole.program
        retrievals = {
            name: loaded(predictor, saved["retrieval"], embedder)
            for name, predictor in program.named_predictors()
            for saved in [state if predictor is program else state.get(name, {})]
            if "retrieval" in saved
        }
        program = retrieve_in(program, retrievals)
        program.load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)
    except (AttributeError, LookupError, TypeError) as error:
        raise UserError(
            f"{path} is of another program than the student ({type(error).__name__}: {error}); it holds "
            f"{sorted(state)}: create the student as it was when it was saved. Of a larger program, DSPy saves no part "
            "that an optimizer has compiled by itself: before you save it, set the part's _compiled to False"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} cannot be loaded into the student: {error}") from error
    for name, predictor in program.named_predictors():
        fields, demos = predictor.signature.fields.keys(), list(predictor.demos)
        demos += retrievals[name].pool.demos if name in retrievals else []
        if demos and not any(fields & demo.keys() for demo in demos):
            raise UserError(
                f"{path} is of another program than the student: its demos of predictor {name!r} have none of the "
                f"fields {list(fields)}"
            )
    calibrated = [part for _, part in program.named_sub_modules(CalibratedProgram) if part.calibration is not None]
    # A call of a calibrated program says so itself.
    told = {id(predictor) for part in calibrated for predictor in part.predictors()}
    differences = other_settings(each for each in program.predictors() if id(each) not in told)
    if differences:
        logger.warning("%s was made with %s, or compile it anew", path, "; with ".join(differences))
    return program


@dataclass(frozen=True)
class ProgramScore:
    """What one program scores.

    Attributes:
        score, interval: The metric on the examples, and its 95 % interval on new ones.
        difference, difference_interval: What it scores more than the first program, on the same examples, and the 95 %
            interval of that; both None for the first.
        num_unread: Replies that could not be read; they count as wrong.
        recalls: Of each label, the share of the examples with this label that were answered with it, also of None if
            that is an answer, too; empty where the program has no output of few labels, or examples have none of them.
    """

    score: float
    interval: tuple[float, float]
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    num_unread: int = 0
    recalls: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ConstantScore:
    """What always answering one label scores.

    Attributes:
        label: The label, as demos show it.
        score: The metric on the examples.
    """

    label: str
    score: float

    @property
    def name(self) -> str:
        """Return what a table calls it."""
        return f"always {self.label!r}"


@dataclass(frozen=True)
class Evaluation:
    """What programs score on the same examples; printed, it is a table.

    Attributes:
        programs: The score of each, by its name.
        num_examples: Examples that each program answered.
        num_failed: Examples that are left out, as a call on them failed.
        constant: What always answering one label scores, the better of the two most frequent ones; None if the first
            program has no single output of few labels, or a decision as output. None, too, if the metric calls a
            language model, takes long, needs more than the label, or scores both labels alike.
    """

    programs: Mapping[str, ProgramScore]
    num_examples: int
    num_failed: int = 0
    constant: ConstantScore | None = None

    def __str__(self) -> str:
        left_out = ""
        if self.num_failed:
            left_out = f", without {self.num_failed} on which a call failed"
        lines = [f"{self.num_examples} examples{left_out}"]
        names = list(self.programs)
        if self.constant is not None:
            names.append(self.constant.name)
        width = max(map(len, names))
        for name, found in self.programs.items():
            parts = ["{:.3f} [{:.3f}, {:.3f}]".format(found.score, *found.interval)]
            if found.difference is not None and (ends := found.difference_interval):
                parts.append("{:+.3f} [{:+.3f}, {:+.3f}] over the first".format(found.difference, *ends))
            if found.num_unread:
                parts.append(f"{found.num_unread} of the replies could not be read")
            if found.recalls:
                recalls = (f"{label} {recall:.2f}" for label, recall in found.recalls.items())
                parts.append(f"recall {', '.join(recalls)}")
            lines.append(f"  {name:{width}}  {'; '.join(parts)}")
        if self.constant is not None:
            lines.append(f"  {self.constant.name:{width}}  {self.constant.score:.3f}, without any call")
        return "\n".join(lines)


@dataclass(frozen=True)
class Evaluations(Mapping[str, Evaluation]):
    """What programs score by several metrics, a mapping; printed, it is a table for each metric.

    Attributes:
        metrics: The evaluation by each metric, by the metric's name.
    """

    metrics: Mapping[str, Evaluation]

    def __getitem__(self, name: str) -> Evaluation:
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {evaluation}" for name, evaluation in self.metrics.items())


@overload
def evaluate_programs(
    programs: Mapping[str, dspy.Module],
    metric: Mapping[str, Metric],
    devset: Examples,
    *,
    num_threads: int | None = None,
    max_errors: int | None = None,
    display_progress: bool = True,
) -> Evaluations: ...


@overload
def evaluate_programs(
    programs: Mapping[str, dspy.Module],
    metric: Metric,
    devset: Examples,
    *,
    num_threads: int | None = None,
    max_errors: int | None = None,
    display_progress: bool = True,
) -> Evaluation: ...


def evaluate_programs(
    programs: Mapping[str, dspy.Module],
    metric: Metric | Mapping[str, Metric],
    devset: Examples,
    *,
    num_threads: int | None = None,
    max_errors: int | None = None,
    display_progress: bool = True,
) -> Evaluation | Evaluations:
    """Score programs on the same examples, with 95 % intervals, and the recall of each label.

    The intervals are those of new examples, of which other shares may have each label, if examples are independent of
    each other. That of a metric over a set is the infinitesimal jackknife's, with four more examples, spread over its
    labels, that are answered best and worst. A failed call is no wrong answer: its example is left out for all
    programs, with a warning. If it is ended early, nothing is kept, but what DSPy's cache holds.

    Several metrics score the same predictions, each with a copy of its own of the example and the prediction. A failed
    call of a program is left out for all metrics. An exception of a metric is a failed call for that metric alone: its
    example is left out for all programs there, and counts for the others. Towards `max_errors` it counts as any other.

    Args:
        programs: By name; the first is what the others are held against. They are not changed.
        metric: By example, or over a set, such as ``F1("positive")``; or several of both kinds, by name.
        devset: Examples that no optimizer has seen. Each program is called once on each, also for several metrics.
        num_threads, max_errors, display_progress: As in `PLReorder`.

    Returns:
        The scores; of several metrics, those by each.

    Raises:
        TypeError, ValueError: for bad arguments, before any program call.
        RuntimeError: when fewer than two examples are left.
        Exception: of a program or a metric, see `max_errors`.
    """
    if not isinstance(programs, Mapping) or not programs or not all(isinstance(name, str) for name in programs):
        raise UserTypeError(
            f'programs must be a dict from names to programs, such as {{"a": program}}; got {programs!r}'
        )
    metrics = _by_name(metric)
    for name, program in programs.items():
        check_given(program, name=f"programs[{name!r}]", to_order=False, devset=devset)
    if len(devset) < 2:
        raise UserError(f"devset must hold two examples at least; got {len(devset)}")
    for each in metrics.values():
        if isinstance(each, SetMetric):
            each.check(devset)
    strange: list[str] = []
    for program in programs.values():
        for each in metrics.values():
            strange += check_answers(program, each, devset, name="devset", told=strange)
    answers = {name: Answers(program, metrics, devset) for name, program in programs.items()}
    with progress_bar(len(programs) * len(devset), display=display_progress, title="evaluate") as bar:
        for answered in answers.values():
            answered.ask(num_threads=num_threads, max_errors=max_errors, on_cell=bar.update)
    calls = {name: list(answered.log.records.values()) for name, answered in answers.items()}
    warnings = dict[str, None]()  # Several metrics may have the same one.
    evaluations = {}
    for name in metrics:
        scores = {program: answered.scores[name] for program, answered in answers.items()}
        if warning := leave_out_failed(scores, len(devset)):
            warnings[warning] = None
        evaluations[name] = compare(scores, len(devset))
    for warning in warnings:
        logger.warning("%s: they are left out", warning)
    for program, cells in calls.items():
        _warn_of_unanswered(program, cells)
    return Evaluations(evaluations) if isinstance(metric, Mapping) else evaluations[ALONE]


def _by_name(metric: Metric | Mapping[str, Metric]) -> dict[str, Metric]:
    """Return metrics by name; of several, a TypeError says which one is none."""
    if not isinstance(metric, Mapping):
        return {ALONE: metric}
    if not metric or not all(isinstance(name, str) and name for name in metric):
        wanted = 'a dict from names to metrics, such as {"accuracy": metric}'
        raise UserTypeError(f"metric must be a metric, or {wanted}; got {metric!r}")
    for name, each in metric.items():
        try:
            metric_caller(each)
        except TypeError as error:
            raise UserTypeError(f"metric[{name!r}]: {error}") from error
    return dict(metric)


def leave_out_failed(scores: Mapping[str, Scores], num_examples: int) -> str:
    """Leave out the examples on which a call of any program failed, and say how many; empty if there are none."""
    failed: dict[int, CallRecord] = {}
    in_metric = ""
    for each in scores.values():
        failed |= {example: cell for example, cell in enumerate(each.cells) if cell.outcome == FAILED}
        if each.failed and each.name:
            in_metric = f"by metric {each.name!r}, "
    if not failed:
        return ""
    left = [example for example in range(num_examples) if example not in failed]
    first = failed[min(failed)]
    warning = f"{in_metric}calls on {len(failed)} of {num_examples} examples failed"
    warning += f", the first by {first.error}: {first.message}"
    if len(left) < 2:
        cure = cure_of((cell.error for cell in failed.values()), otherwise="mend that, or try again")
        raise RuntimeError(f"{warning}: {cure}")
    for each in scores.values():
        each.keep(left)
    return warning


def compare(scores: Mapping[str, Scores], num_examples: int) -> Evaluation:
    """Return what programs score by a metric, by their names, on the examples that are left of so many."""
    first, *_ = scores.values()
    values = [cell.score for each in scores.values() for cell in each.cells]
    least = min([0.0, *(value for value in values if value is not None)])
    for each in scores.values():
        each.least = least
    num_left = len(first.cells)
    programs = {name: each.score(first) for name, each in scores.items()}
    return Evaluation(programs, num_left, num_examples - num_left, first.constant())


def _warn_of_unanswered(name: str, cells: Sequence[CallRecord]) -> None:
    """Warn of calls that count as wrong for a reason outside the program."""
    errors = [cell.error for cell in cells if cell.outcome == WRONG and cause_of(cell.error) is not None]
    if errors:
        told = "%s: %d of %d calls count as wrong, as they ended in %s: %s"
        logger.warning(told, name, len(errors), len(cells), errors[0], cure_of(errors, otherwise=""))


class Answers(MetricWork):
    """The answers of a program to examples, None for those that could not be read, scored by metrics as they come."""

    def __init__(self, program: dspy.Module, metrics: Mapping[str, Metric], examples: Examples) -> None:
        super().__init__(lambda example, prediction: 0.0, examples)
        self.predictions: list[Any] = [None] * len(examples)
        self.log = RunLog()
        self.scores = {name: Scores(name, program, metric, examples) for name, metric in metrics.items()}
        self.models = [model for each in self.scores.values() for model in each.models]
        self._program = program

    def ask(self, **limits: Any) -> Answers:
        """Call the program on each example; whatever ends that early, the log and the predictions have the rest."""
        Checked(**{name: limits[name] for name in ("num_threads", "max_errors")})
        options: dict[str, Any] = {"called": "example", "log": self.log, **limits}
        cells, _ = calls_on(self._program, self, len(self.examples), **options)
        for each in self.scores.values():
            each.take(cells, self.predictions)
        return self

    def __call__(self, program: dspy.Module, example: int) -> CallRecord:
        """Call the program, and have each metric score its answer; raise the first exception of a metric after all."""
        prediction = self._answered(program, example)
        self.predictions[example] = prediction
        first: BaseException | None = None
        for each in self.scores.values():
            error = each.note(example, prediction)
            first = first or error
        if first is not None:
            raise first
        return CallRecord(0.0)


class Scores(MetricWork):
    """What a metric gives to the answers of a program, by cells."""

    def __init__(self, name: str, program: dspy.Module, metric: Metric, examples: Examples) -> None:
        self._labels: list[str] = []
        if isinstance(metric, SetMetric):
            self._labels = metric.output_labels(program, examples)
        super().__init__(metric, examples, self._labels)
        self.name = name  # of the metric; `ALONE` if it has none
        self.metric = metric
        self.cells, self.predictions = list[CallRecord](), list[Any]()
        self.failed: set[int] = set()  # examples on which the metric itself raised an exception
        self.least = 0.0  # what a reply that could not be read scores
        self._program = program
        self._noted: dict[int, CallRecord] = {}
        self._redact = Redactor([dspy.settings.lm, *language_models(program), *self.models])

    def note(self, example: int, prediction: Any) -> BaseException | None:
        """Score an answer; return the exception of the metric if it raises one."""
        try:
            self._noted[example] = self._scored(example, own_value(prediction))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # The other metrics go on; it ends the calls as any other failure.
            self.failed.add(example)
            message = f"in the metric: {first_line(error, self._redact)}"
            self._noted[example] = CallRecord(None, FAILED, type(error).__name__, message)
            if self.name:
                error.__notes__ = [*getattr(error, "__notes__", ()), f"(metric {self.name!r})"]
            return error
        return None

    def take(self, calls: Sequence[CallRecord], predictions: Sequence[Any]) -> None:
        """Take the answers of all calls; those that the metric did not see count as their calls ended."""
        self.cells = [self._noted.get(example, cell) for example, cell in enumerate(calls)]
        self.predictions = list(predictions)

    def keep(self, examples: Sequence[int]) -> None:
        """Go by these examples alone."""
        self.examples = [self.examples[example] for example in examples]
        self.predictions = [self.predictions[example] for example in examples]
        self.cells = [self.cells[example] for example in examples]
        if self._over_set is not None:
            right_labels = self._over_set.right_labels(self.examples)
            self.influence = ConfusionScores(self._over_set, right_labels, self._labels)

    def constant(self) -> ConstantScore | None:
        """Return what the better of the two most frequent labels scores if it is the answer to every example."""
        output = label_output(self._program)
        if not isinstance(output, LabelOutput) or output.decision is not None:
            return None
        frequent: list[str]
        if isinstance(self.metric, SetMetric):
            right_labels = self.metric.right_labels(self.examples)
            frequent = [label for label, _ in Counter(right_labels).most_common(2)]
            values = []
            for label in frequent:
                answers = [label] * len(self.examples)
                values.append(self.metric.score(right_labels, answers, labels=self._labels))
        else:
            names = list(output.labels)
            numbers = output.numbers(self.examples)
            counts = Counter(numbers[numbers >= 0].tolist())
            if not counts:
                return None
            # Two labels, also if all examples have one: a metric that scores both alike says nothing of labels.
            by_count = sorted(range(len(names)), key=lambda number: -counts[number])
            frequent = [names[number] for number in by_count[:2]]
            few_labels = replace(output, labels={label: output.labels[label] for label in frequent})
            scores = label_scores(self.metric, self.examples, few_labels)
            if isinstance(scores, str):
                return None
            values = scores.mean(axis=0).tolist()
        best = int(np.argmax(values))
        return ConstantScore(frequent[best], values[best])

    def scored(self, *others: Scores) -> list[tuple[list[float], float]]:
        """What each answer scores, and all together, of this program and of others: of a metric over a set, near the
        answers of all."""
        every = (self, *others)
        if self.influence is None:
            rows = [[self.least if cell.score is None else cell.score for cell in each.cells] for each in every]
            return [(row, float(np.mean(row))) for row in rows]
        answers = [list(enumerate(cell.value for cell in each.cells)) for each in every]
        self.influence.linearize_at(pair for each in answers for pair in each)
        return [([self.influence.score(*pair) for pair in each], self.influence.value(each)) for each in answers]

    def score(self, first: Scores) -> ProgramScore:
        """What they come to, beside those of the first program."""
        ((scores, value),) = self.scored()
        if self.influence is None:
            low, high = min(0.0, *scores), max(float(min(scores) >= 0.0), *scores)
            # Two successes and two failures more (A. Agresti and B. Coull, The American Statistician 52, 1998).
            least, most = mean_interval([*scores, low, low, high, high])
        else:
            low, high = self.influence.bounds
            centre, error = self.influence.mean_with_error(scores, value)
            margin = float(special.stdtrit(len(scores) + 3, 0.975)) * error
            least, most = min(value, centre - margin), max(value, centre + margin)
        interval = (max(low, least), min(high, most))
        num_unread, recalls = sum(bool(cell.outcome) for cell in self.cells), dict[str, float]()
        if isinstance(output := label_output(self._program), LabelOutput):
            right = output.numbers(self.examples)
            answers = np.array([output.label_of(prediction) for prediction in self.predictions], dtype=object)
            if any(answers) or all(each is None for each in self.predictions):  # Else they may lie under another name.
                numbers = enumerate(output.labels)
                recalls = {label: float(np.mean(answers[right == i] == label)) for i, label in numbers if i in right}
                pairs = zip(self.examples, self.predictions, strict=True)
                of_none = [prediction for example, prediction in pairs if output.num_none([example])]
                if of_none:
                    read = [each for each in of_none if isinstance(each, dspy.Prediction)]
                    recalls.setdefault("None", output.num_none(read) / len(of_none))
        found = ProgramScore(value, interval, num_unread=num_unread, recalls=recalls)
        if self is first:
            return found
        (before, _), (after, _) = first.scored(self)
        differences = [b - a for a, b in zip(before, after, strict=True)]
        largest = high - low if self.influence is None else self.influence.largest_influence()
        # Where all answers score the same, others may not.
        ends = paired_interval(differences, largest=0.0 if any(differences) else largest)
        interval = (max(low - high, ends[0]), min(high - low, ends[1]))
        return replace(found, difference=value - first.scored()[0][1], difference_interval=interval)

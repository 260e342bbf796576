"""The setup of a compile run before its first call: options, program, examples and plan."""

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import dspy

from plr_dspy.compiling.paper import NOTHING_TO_DO
from plr_dspy.compiling.plan import Plan, ProblemSize, most_calls
from plr_dspy.dspy_compat import current_adapter, model_of
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.labels.checks import (
    check_answers,
    check_answers_itself,
    check_labels,
    check_needed_outputs,
    warn_of_labels_without_examples,
)
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.programs.attached_results import CALIBRATION_REPORT, result_attributes
from plr_dspy.programs.checks import AnyMetric, Checked, check_given
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.instructions import Instruction
from plr_dspy.programs.rivals import Rival
from plr_dspy.programs.slots import PromptSlots
from plr_dspy.programs.splits import Examples, Splits, empty_split, make_splits
from plr_dspy.retrieval.predict import retrievals_of
from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

Teacher: TypeAlias = dspy.Module | Sequence[dspy.Module] | None  # as in DSPy's optimizers

FEW_EXAMPLES = 30  # with fewer examples, chance mostly decides which candidate seems best

UNKNOWN_ANSWER = "..."  # placeholder for a teacher's answer in a demo until the teacher has run

# `plain_arguments` omits these arguments, because they do not affect the result or because
# `CompileSetup.settings` adds them.
OMITTED_ARGUMENTS = {"metric", "seed", "log_dir", "accept_changes", "display_progress"}


class Attempt(NamedTuple):
    """A teacher's attempt to make demos from an example."""

    example: int  # index in the trainset
    key: tuple[str, str]  # key of the attempt's record in the log
    demos: dict[str, Any]  # demos keyed by predictor; empty if no demo was made
    record: CallRecord


@dataclass(frozen=True)
class Proposal:
    """A task for the prompt model: to propose an instruction, or to describe the data."""

    predictor: str  # name of the predictor; empty if the task is to describe the data
    number: int  # index among the predictor's tasks, starting at 1; 0 if the task describes the data
    prompt: str = ""  # first part of the log record's key
    record: CallRecord = field(default_factory=lambda: CallRecord(None))
    from_failures: bool = False  # whether the instruction is based on failures seen in the search

    @property
    def describes_data(self) -> bool:
        """Whether the task is to describe the data rather than propose an instruction."""
        return not self.predictor

    @property
    def name(self) -> str:
        """The name of the task in messages."""
        if self.describes_data:
            return "the data"
        if self.from_failures:
            return f"instruction for {self.predictor} from failures"
        return f"instruction {self.number} for {self.predictor}"

    @property
    def text(self) -> str:
        """The text that the task produced. Empty if the task failed or has not run yet."""
        return str((self.record.value or {}).get("text", ""))


@dataclass(frozen=True)
class CompileOptions:
    """The arguments and class attributes of an optimizer that affect `compile`."""

    metric: AnyMetric
    name: str
    student_name: str
    scored_on: str
    chooses_by_score: bool
    orders_demos: bool
    balances_splits: bool
    max_metric_calls: int | None
    max_seconds: float | None
    max_cost: float | None
    arguments: Mapping[str, object]  # the optimizer's arguments as plain data, for the report
    log_dir: str | Path | None
    accept_changes: bool
    display_progress: bool
    max_errors: int | None
    num_threads: int | None
    max_demos: int = 0
    max_demo_tokens: int | None = None
    max_bootstrapped: int = 0
    metric_threshold: float | None = None

    @classmethod
    def of(cls, optimizer: Checked) -> "CompileOptions":
        """Return the options of an optimizer."""
        # Users' subclasses may override `get_params`, so call the method of the base class.
        values: dict[str, Any] = {"arguments": plain_arguments(Checked.get_params(optimizer))}
        for option in fields(cls):
            if hasattr(optimizer, option.name):
                values[option.name] = getattr(optimizer, option.name)
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class DemoChoices:
    """The demos and instructions to choose from, and the sources of further demos and instructions."""

    program: dspy.Module  # a copy of the student
    slots: PromptSlots
    original: Candidate  # the candidate that is returned unless another one is better
    # Demos and examples that must not be used for scoring, besides the program's own demos.
    others: Sequence[Any] = ()
    # Examples that may become demos and examples that may be retrieved, both keyed by trainset index.
    demo_examples: Mapping[int, dspy.Example] = field(default_factory=dict)
    retrievable: Mapping[int, dspy.Example] = field(default_factory=dict)
    teacher: dspy.Module | None = None  # program whose answers become demos; None means the student
    # Instructions that cannot be used, for example because they are too long, keyed by predictor.
    dropped_instructions: Mapping[str, Sequence[Instruction]] = field(default_factory=dict)
    prompt_model: dspy.BaseLM | None = None  # model that proposes instructions, if any
    # Proposals and bootstrapping attempts: the planned ones or, after their calls, the finished ones.
    # `CompileSetup.plan` does not include these calls.
    proposals: Sequence[Proposal] = ()
    attempts: Sequence[Attempt] = ()

    @property
    def rivals(self) -> list[Rival]:
        """The user's programs. They compete unchanged with the other candidates."""
        return list(self.slots.rivals.values())


@dataclass(frozen=True, kw_only=True)
class CompileSetup(DemoChoices):
    """The options, examples, demo choices and plan of a compile run."""

    options: CompileOptions
    started: float  # value of `time.monotonic()` at the start of the compile run
    seed: int
    splits: Splits
    models: Sequence[dspy.BaseLM]  # the models of the predictors and of the user's programs
    examples: Examples  # the trainset, followed by the valset
    plan: Plan = NOTHING_TO_DO

    @property
    def scored_examples(self) -> Examples:
        """The train split, followed by the selection split. Call records are keyed by indices into it."""
        return [*self.splits.train, *self.splits.selection]

    @property
    def labels_of_metric(self) -> list[str]:
        """The labels that the output's type allows, for a metric over a set; empty for other metrics."""
        metric = self.options.metric
        if isinstance(metric, SetMetric):
            return metric.output_labels(self.program, self.scored_examples)
        return []

    @property
    def needs_calls(self) -> bool:
        """Whether program calls decide which candidate is returned."""
        return self.slots.space.num_distinct > 1 and self.options.max_metric_calls != 0

    @property
    def max_distinct(self) -> int:
        """The maximum number of distinct prompts, including those with instructions added later."""
        space = self.slots.space
        if not self.proposals:
            return space.num_distinct
        return space.with_choices(
            [len(texts) + 1 for texts in self.slots.alternatives.values()]
        ).num_distinct

    @property
    def size(self) -> ProblemSize:
        """The problem size that determines the plan."""
        return ProblemSize(
            num_train=len(self.splits.train),
            num_selection=len(self.splits.selection),
            num_distinct=self.max_distinct,
            num_attempts=len(self.attempts),
        )

    def with_plan(self, plan: Plan) -> "CompileSetup":
        """Return this setup with the plan, adapted to the size of the search space.

        A search that can score every candidate needs no race. However, if the search space does not
        contain the original, a race scores only the original.
        """
        space = self.slots.space
        exhaustive_calls = self.max_distinct * plan.num_train_examples
        if plan.racing and plan.search_calls >= exhaustive_calls:
            race_calls = 0
            if not space.contains(self.original) and self.original not in space.programs:
                calls_left = plan.search_calls + plan.race_calls - exhaustive_calls
                race_calls = min(calls_left, plan.num_train_examples)
            plan = replace(plan, most_searched=exhaustive_calls, race_calls=race_calls)
        return replace(self, plan=plan)

    def settings(self) -> dict[str, Any]:
        """Return the settings that determine the result, as plain data for the report."""
        options = self.options
        metric = options.metric
        metric_name = getattr(metric, "__name__", type(metric).__name__)
        if isinstance(metric, SetMetric):
            metric_name = repr(metric)
        return {
            "method": options.name,
            **options.arguments,
            "seed": self.seed,
            "metric": metric_name,
            "scored_on": options.scored_on,
            "adapter": type(current_adapter()).__name__,
            "models": sorted({str(lm.model) for lm in self.models}),
            "num_train": len(self.splits.train),
            "num_selection": len(self.splits.selection),
            "num_repeated": self.splits.num_repeated,
            "racing": self.plan.racing,
            **asdict(self.plan),
            "most_useful_calls": most_calls(len(self.splits.names)),
        }


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return arguments, except `OMITTED_ARGUMENTS`, as plain data, with digests in place of objects."""
    plain = {name: _plain(value) for name, value in arguments.items() if name not in OMITTED_ARGUMENTS}
    if "update" in arguments:
        rule = arguments["update"]
        plain["update"] = _plain({"name": rule.name, **vars(rule)})
    return plain


def _plain(value: Any) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    return digest(value)


def make_setup(
    options: CompileOptions,
    choices: DemoChoices,
    *,
    seed: int,
    trainset: Examples,
    valset: Examples,
    rng: random.Random,
    started: float,
) -> CompileSetup:
    """Split the examples, and return the setup of the compile run without a plan.

    Raises:
        ValueError: If program calls are needed but a split is empty.
    """
    predictors = choices.program.predictors()
    demos = list(choices.others)
    models = [model_of(predictor) for predictor in predictors]
    for rival in choices.rivals:
        demos += rival.leaked([*trainset, *valset])
        models += rival.models
    prompted: set[str] = set()
    for predictor in predictors:
        demos += predictor.demos
        prompted.update(predictor.signature.input_fields)
    splits = make_splits(trainset, valset, demos, rng, balanced=options.balances_splits, prompted=prompted)
    setup = CompileSetup(
        **vars(choices),
        options=options,
        started=started,
        seed=seed,
        splits=splits,
        models=[lm for lm in models if lm is not None],
        examples=[*trainset, *valset],
    )
    if setup.needs_calls:
        _check_splits(setup, len(trainset), len(valset))
    return setup


def _check_splits(setup: CompileSetup, num_trainset: int, num_valset: int) -> None:
    """Raise an error if a split is empty. Warn if there are only a few examples to score."""
    options = setup.options
    splits = setup.splits
    if not (splits.train and splits.selection):
        raise UserError(empty_split(splits, num_trainset, num_valset))
    if options.chooses_by_score and len(setup.scored_examples) < FEW_EXAMPLES:
        num_scored = len(setup.scored_examples)
        subject = f"{num_scored} examples"
        if num_scored < len(setup.examples):
            subject = (
                f"only {num_scored} of {len(setup.examples)} examples can be used for scoring, because demos and "
                "duplicates are excluded. These examples"
            )
        logger.warning("%s are too few to find small gains: pass at least 100 examples", subject)


def checked_student(
    options: CompileOptions, student: dspy.Module, trainset: Examples, valset: Examples
) -> dspy.Module:
    """Check the student and the examples, and return a copy of the student."""
    name = options.student_name
    if options.orders_demos:
        check_answers_itself(student, name=name)
    program = _checked_copy(options, student, trainset, valset, name=name, to_order=options.orders_demos)
    if options.chooses_by_score and options.max_metric_calls != 0:
        check_labels(program, options.metric, trainset=trainset, valset=valset)
        warn_of_labels_without_examples(program, [*trainset, *valset])
    if options.orders_demos and retrievals_of(student):
        raise UserError(
            f"{name} must have fixed demos; got a program that retrieves demos for each input: pass the original "
            "student or, to calibrate this program, use BatchCalibration"
        )
    return program


def check_metric(setup: CompileSetup) -> None:
    """Raise a ValueError if a metric over a set cannot be computed on the examples to score."""
    metric = setup.options.metric
    if isinstance(metric, SetMetric):
        metric.check(setup.scored_examples)
        labels = metric.output_labels(setup.program, setup.scored_examples)
        metric.check_value(setup.scored_examples, labels)


def checked_rivals(
    options: CompileOptions,
    first: Rival,
    programs: Mapping[str, dspy.Module],
    trainset: Examples,
    valset: Examples,
) -> list[Rival]:
    """Check the user's programs and return copies of them.

    Omit programs that are identical to `first` or to an earlier program, and log a warning.
    """
    examples = [*trainset, *valset]
    distinct = {first.digest: first}
    for name, program in programs.items():
        argument = f"programs[{name!r}]"
        rival = Rival(
            name, _checked_copy(options, program, trainset, valset, name=argument, to_order=False)
        )
        check_needed_outputs(
            rival.program, first.program, options.metric, examples, name=argument, first_name=first.name
        )
        same = distinct.setdefault(rival.digest, rival)
        if same is not rival:
            logger.warning(
                "%r and %r are the same program, so only %r is compared", name, same.name, same.name
            )
    return list(distinct.values())[1:]


def checked_teacher(teacher: Teacher) -> dspy.Module | None:
    """Return the teacher, or the first teacher in a list. None means that the student is the teacher."""
    if isinstance(teacher, (list, tuple)):
        teacher = teacher[0] if teacher else None
    if teacher is not None and not isinstance(teacher, dspy.Module):
        raise UserTypeError(
            f"teacher must be a dspy.Module; got {type(teacher).__name__}: pass a program, or omit teacher"
        )
    return teacher


def _checked_copy(
    options: CompileOptions,
    program: dspy.Module,
    trainset: Examples,
    valset: Examples,
    *,
    name: str,
    to_order: bool,
) -> dspy.Module:
    """Check a program and the examples, and return a copy without the results of earlier optimizers."""
    check_given(program, name=name, to_order=to_order, trainset=trainset, valset=valset)
    check_answers(program, options.metric, [*trainset, *valset], name="trainset", program_name=name)
    copy = ProgramFactory(program).build({})
    _remove_earlier_results(copy)
    return copy


def _remove_earlier_results(program: dspy.Module) -> None:
    """Remove the results of earlier optimizers, because they describe the original program, not the copy.

    Keep the report of a calibration, because the copy is calibrated in the same way.
    """
    for name in result_attributes(program):
        if name != CALIBRATION_REPORT:
            delattr(program, name)

"""The setup of a compile before its first call: options, program, examples and plan."""

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import dspy

from plr_dspy.compiling.paper import NOTHING_TO_DO
from plr_dspy.compiling.plan import Plan, ProblemSize, most_calls
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.work import check_answers
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.programs.checks import AnyMetric, check_given
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.instructions import Instruction
from plr_dspy.programs.slots import PromptSlots
from plr_dspy.programs.splits import Examples, Splits, empty_split, make_splits
from plr_dspy.report.text import FEW_EXAMPLES
from plr_dspy.retrieval.predict import retrievals_of
from plr_dspy.scoring.run_log import CallRecord, Tokens
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

Teacher: TypeAlias = dspy.Module | Sequence[dspy.Module] | None  # as in DSPy's optimizers

# Arguments that do not affect a compile, or that `CompileSetup.settings` adds itself.
NAMED_ELSEWHERE = {"metric", "seed", "log_dir", "accept_changes", "display_progress"}


class Attempt(NamedTuple):
    """A teacher's attempt to make demos from an example."""

    example: int  # index in the trainset
    key: tuple[str, str]  # key of its record in the log
    demos: dict[str, Any]  # by predictor; empty if the answer was wrong
    cell: CallRecord


@dataclass(frozen=True)
class Proposal:
    """A task of the prompt model: to propose an instruction, or to describe the data."""

    predictor: str  # empty for the description of the data, which comes first
    number: int
    prompt: str = ""  # first part of the key of its record in the log
    record: CallRecord = field(default_factory=lambda: CallRecord(None))
    tokens: Tokens = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text that the task made; empty if none."""
        return str((self.record.value or {}).get("text", ""))

    @property
    def num_calls(self) -> int:
        """Number of calls of the prompt model, if the task succeeded."""
        return int((self.record.value or {}).get("calls", 0))


@dataclass(frozen=True)
class CompileOptions:
    """The arguments and attributes of an optimizer that its compiles read."""

    metric: AnyMetric
    name: str
    student_name: str
    trainset_name: str
    scored_on: str
    chooses_by_score: bool
    balances_splits: bool
    calibrate: bool | Mapping[Any, float]
    max_metric_calls: int | None
    max_seconds: float | None
    max_cost: float | None
    arguments: Mapping[str, object]  # all relevant arguments, as plain data
    max_demos: int = 0
    max_bootstrapped: int = 0
    metric_threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class DemoChoices:
    """The demos that a compile can order or choose."""

    program: dspy.Module  # a copy of the student
    slots: PromptSlots
    original: Candidate  # stays unless another is better
    others: Sequence[Any] = ()  # demos not in the program; never used for scoring
    demo_examples: Mapping[int, dspy.Example] = field(default_factory=dict)  # sources of demos, by trainset index
    findable: Mapping[int, dspy.Example] = field(default_factory=dict)  # sources of retrieved demos
    teacher: dspy.Module | None = None  # makes demos; None if the student does
    dropped_instructions: Mapping[str, Sequence[Instruction]] = field(default_factory=dict)  # by predictor
    prompt_model: dspy.BaseLM | None = None  # proposes instructions; None if there are none to propose
    proposals: Sequence[Proposal] = ()  # the maximum, later those made; the plan excludes their calls
    attempts: Sequence[Attempt] = ()  # the maximum, later those made; the plan excludes their calls


@dataclass(frozen=True, kw_only=True)
class CompileSetup(DemoChoices):
    """A compile that has passed all checks and made no calls yet."""

    options: CompileOptions
    seed: int
    splits: Splits
    models: Sequence[dspy.BaseLM]  # the predictors' models
    examples: Examples  # the trainset, then the valset
    plan: Plan = NOTHING_TO_DO

    @property
    def scored_examples(self) -> Examples:
        """The train split, then the selection split, as call records number them."""
        return [*self.splits.train, *self.splits.selection]

    @property
    def needs_calls(self) -> bool:
        """Whether calls are needed to make a choice."""
        return self.slots.space.num_distinct > 1 and self.options.max_metric_calls != 0

    @property
    def size(self) -> ProblemSize:
        """The problem size that the plan depends on."""
        return ProblemSize(
            num_train=len(self.splits.train),
            num_selection=len(self.splits.selection),
            num_distinct=self.slots.space.num_distinct,
            num_attempts=len(self.attempts),
        )

    def with_plan(self, plan: Plan) -> "CompileSetup":
        """Return this setup with a plan, adapted to the size of its search space.

        A search that can score every candidate needs no race, except for an original outside its space.
        """
        space = self.slots.space
        every = space.num_distinct * plan.num_train_examples
        if plan.racing and plan.search_calls >= every:
            race_calls = 0
            if not space.contains(self.original) and self.original not in space.programs:
                left = plan.search_calls + plan.race_calls - every
                race_calls = min(left, plan.num_train_examples)
            plan = replace(plan, most_searched=every, race_calls=race_calls)
        return replace(self, plan=plan)

    def settings(self) -> dict[str, Any]:
        """Return everything that determines the compile, as plain data."""
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
            "adapter": type(dspy.settings.adapter or dspy.ChatAdapter()).__name__,
            "models": sorted({str(lm.model) for lm in self.models}),
            "num_train": len(self.splits.train),
            "num_selection": len(self.splits.selection),
            "num_repeated": self.splits.num_repeated,
            "racing": self.plan.racing,
            **asdict(self.plan),
            "most_useful_calls": most_calls(len(self.splits.names)),
        }


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return the arguments for the settings as plain data, with digests of objects."""
    plain = {name: _plain(value) for name, value in arguments.items() if name not in NAMED_ELSEWHERE}
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
) -> CompileSetup:
    """Split the examples, and set up a compile without a plan."""
    name = options.trainset_name
    predictors = choices.program.predictors()
    demos = list(choices.others)
    prompted: set[str] = set()
    for predictor in predictors:
        demos += predictor.demos
        prompted.update(predictor.signature.input_fields)
    splits = make_splits(trainset, valset, demos, rng, balanced=options.balances_splits, name=name, prompted=prompted)
    models = [predictor.lm or dspy.settings.lm for predictor in predictors]
    setup = CompileSetup(
        **vars(choices),
        options=options,
        seed=seed,
        splits=splits,
        models=[lm for lm in models if lm is not None],
        examples=[*trainset, *valset],
    )
    if setup.needs_calls and not (splits.train and splits.selection):
        cure = "pass more examples, or fewer demos"
        raise UserError(empty_split(splits, len(trainset), len(valset), name=name, cure=cure))
    if setup.needs_calls and options.chooses_by_score and len(setup.scored_examples) < FEW_EXAMPLES:
        logger.warning(
            "only %d of %d examples can score orders (not those that are demos, or given twice), so little can be "
            "found: pass 100 examples or more",
            len(setup.scored_examples),
            len(setup.examples),
        )
    return setup


def checked_copy(options: CompileOptions, student: dspy.Module, trainset: Examples, valset: Examples) -> dspy.Module:
    """Check the user's arguments, and return a copy of the student."""
    if isinstance(student, CalibratedProgram):
        raise UserError(
            f"{options.student_name} is calibrated for the order of its demos: pass student.program, and calibrate the "
            "result"
        )
    datasets: dict[str, Any] = {options.trainset_name: trainset, "valset": valset}
    check_given(student, name=options.student_name, **datasets)
    if retrievals_of(student):
        raise UserError(
            f"{options.student_name} finds its demos for each input, so that there is nothing to learn: pass the "
            "program that it was made of, or pass it to BatchCalibration"
        )
    program = ProgramFactory(student).build({})
    _forget_earlier_compile(program)
    check_answers(program, options.metric, [*trainset, *valset], name=options.trainset_name)
    return program


def _forget_earlier_compile(program: dspy.Module) -> None:
    """Remove attributes that optimizers (including DSPy's) added: every copy would hold them."""
    attributes = vars(program)
    attributes.pop("reorder_report", None)
    candidates = attributes.get("candidate_programs")
    if isinstance(candidates, list) and candidates:
        first = candidates[0]
        if isinstance(first, Mapping) and {"score", "program"} <= first.keys():
            del program.candidate_programs

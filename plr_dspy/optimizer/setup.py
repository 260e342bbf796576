"""What a compile works on: its options, the program, and the examples, laid out before the first call."""

import logging
import random
from ast import literal_eval
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple

import dspy

from plr_dspy.compilation.paper import NOTHING_TO_DO
from plr_dspy.compilation.plan import Plan, ProblemSize, most_calls
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.work import check_answers
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.programs.checks import AnyMetric, check_given
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.slots import PromptSlots
from plr_dspy.programs.splits import Examples, Splits, empty_split, make_splits
from plr_dspy.report.text import FEW_EXAMPLES
from plr_dspy.retrieval.predict import retrievals_of
from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.search.space import Candidate

logger = logging.getLogger(__name__)

# Arguments that do not change a compile, or that `CompileSetup.settings` names otherwise.
NAMED_ELSEWHERE = {"metric", "seed", "log_dir", "accept_changes", "display_progress"}


class Attempt(NamedTuple):
    """What a teacher makes of an example."""

    example: int  # its number in the trainset
    key: tuple[str, str]  # of its cell in the log
    demos: dict[str, Any]  # by predictor; empty if the answer was not right
    cell: CallRecord  # that cell; before the attempt is made, one without an error


@dataclass(frozen=True)
class CompileOptions:
    """The arguments and traits of an optimizer that its compiles read; arguments are as in `PLReorder`."""

    metric: AnyMetric
    method: str  # the optimizer's name
    student_name: str  # what users call the argument
    trainset_name: str
    scored_on: str
    chooses_by_score: bool  # whether the metric decides
    chooses_demos: bool
    balances_splits: bool  # whether both splits get equal shares of each class
    calibrate: bool | Mapping[Any, float]
    max_metric_calls: int | None
    max_seconds: float | None
    max_cost: float | None
    arguments: Mapping[str, object]  # all that matter, as plain data
    max_demos: int = 0  # this and what follows are as in `PLFewShot`
    max_bootstrapped: int = 0
    metric_threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class DemoChoices:
    """What a compile can order or choose."""

    program: dspy.Module  # a copy of the student, or of what the student calibrates if that is to be calibrated anew
    slots: PromptSlots
    original: Candidate  # what the user has: the identity, `WITHOUT_DEMOS`, an arrangement, or a whole program
    others: Sequence[Any] = ()  # demos beside those of the program, which never score
    demo_examples: Mapping[int, dspy.Example] = field(default_factory=dict)  # that demos are made of, by their numbers
    findable: Mapping[int, dspy.Example] = field(default_factory=dict)  # that found demos are made of
    student: dspy.Module | None = None  # one that finds its demos, which `program` does not
    teacher: dspy.Module | None = None  # makes demos; None if the student does
    # As many as there may be, later those that were made. The plan does not count their calls.
    attempts: Sequence[Attempt] = ()


@dataclass(frozen=True, kw_only=True)
class CompileSetup(DemoChoices):
    """A compile that has passed all checks, and has not made a call."""

    options: CompileOptions
    seed: int
    splits: Splits
    models: Sequence[dspy.BaseLM]  # of the predictors
    examples: Examples  # all that were passed, the trainset first
    num_trainset: int
    calibrated_student: CalibratedProgram | None  # what is to be calibrated anew
    plan: Plan = NOTHING_TO_DO

    @property
    def trainset(self) -> Examples:
        """The trainset as the user passed it."""
        return self.examples[: self.num_trainset]

    @property
    def scored_examples(self) -> Examples:
        """The train split, then the selection split, as cells number them."""
        return [*self.splits.train, *self.splits.selection]

    @property
    def needs_calls(self) -> bool:
        """Whether there is a choice that calls may decide."""
        return self.slots.space.num_distinct > 1 and self.options.max_metric_calls != 0

    @property
    def size(self) -> ProblemSize:
        """What the plan depends on."""
        return ProblemSize(
            num_train=len(self.splits.train),
            num_selection=len(self.splits.selection),
            num_distinct=self.slots.space.num_distinct,
            num_attempts=len(self.attempts),
        )

    def with_plan(self, plan: Plan) -> "CompileSetup":
        """Return this setup with a plan, which races with the calls that its search cannot use.

        A search that can score every candidate needs no further call. The race scores the original, unless the search
        does.
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
        """Return everything that decides the course of the compile, as plain data."""
        options = self.options
        metric = options.metric
        metric_name = getattr(metric, "__name__", type(metric).__name__)
        if isinstance(metric, SetMetric):
            metric_name = repr(metric)
        return {
            "method": options.method,
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
    """Return the arguments that settings show as plain data; of objects a digest."""
    plain = {name: _plain(value) for name, value in arguments.items() if name not in NAMED_ELSEWHERE}
    rule = arguments.get("update")
    if rule is not None:
        parameters = fields(rule) if is_dataclass(rule) else ()
        values = {parameter.name: _plain(getattr(rule, parameter.name)) for parameter in parameters}
        plain["update"] = {"name": rule.name, **values}
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
    calibrated_student: CalibratedProgram | None,
    rng: random.Random,
) -> CompileSetup:
    """Split the examples, and return the setup of a compile without a plan.

    Neither the program's demos nor the `others` of its choices score.
    """
    predictors = choices.program.predictors()
    demos = list(choices.others)
    prompted: set[str] = set()
    for predictor in predictors:
        demos += predictor.demos
        prompted.update(predictor.signature.input_fields)
    models = [predictor.lm or dspy.settings.lm for predictor in predictors]
    splits = make_splits(
        trainset, valset, demos, rng, balanced=options.balances_splits, name=options.trainset_name, prompted=prompted
    )
    setup = CompileSetup(
        **vars(choices),
        options=options,
        seed=seed,
        splits=splits,
        models=[lm for lm in models if lm is not None],
        examples=[*trainset, *valset],
        num_trainset=len(trainset),
        calibrated_student=calibrated_student,
    )
    if setup.needs_calls:
        _check_number(setup)
    return setup


def _check_number(setup: CompileSetup) -> None:
    """Raise if a split is empty, and warn of few examples."""
    splits = setup.splits
    options = setup.options
    if not (splits.train and splits.selection):
        cure = "pass more examples"
        if setup.others and not setup.demo_examples:  # They are candidates that the user passed.
            cure += ", or leave some of these out of candidates"
        num_valset = len(setup.examples) - setup.num_trainset
        raise UserError(empty_split(splits, setup.num_trainset, num_valset, name=options.trainset_name, cure=cure))
    num_usable = len(setup.scored_examples)
    if num_usable < FEW_EXAMPLES and options.chooses_by_score:
        logger.warning(
            "only %d of %d examples can score orders (not those that are demos, or given twice). On so few, chance "
            "alone moves the score of an order by %.2f, so little can be found: pass 100 examples or more",
            num_usable,
            len(setup.examples),
            (0.25 / num_usable) ** 0.5,
        )


def checked_copy(
    options: CompileOptions, student: dspy.Module, trainset: Examples, valset: Examples
) -> tuple[dspy.Module, CalibratedProgram | None]:
    """Check what the user passes, and return `program` and `calibrated_student` of a setup."""
    calibrated = None
    if isinstance(student, CalibratedProgram) and options.calibrate is not False:
        calibrated = student
        student = student.program
    datasets: dict[str, Any] = {options.trainset_name: trainset, "valset": valset}
    check_given(student, name=options.student_name, **datasets)
    _check_retrieval(options, student, [*trainset, *valset])
    program = ProgramFactory(student).build({})
    _forget_earlier_compile(program)
    check_answers(program, options.metric, [*trainset, *valset], name=options.trainset_name)
    return program, calibrated


def _check_retrieval(options: CompileOptions, student: dspy.Module, examples: Examples) -> None:
    """Raise if a student finds its demos for each input, and this optimizer or these examples do not allow for it."""
    retrievals = retrievals_of(student).values()
    if retrievals and not options.chooses_demos:
        raise UserError(
            f"{options.student_name} finds its demos for each input, so that there is no order to learn: pass it to "
            "PLFewShot as the student, or to BatchCalibration"
        )
    named = {tuple(sorted(example.inputs().keys())) for example in examples}
    for retrieval in retrievals:
        known_sources = set(retrieval.pool.sources) - {""}
        pooled = {tuple(name for name, _ in literal_eval(source)) for source in known_sources}
        if pooled and named - pooled:  # Nobody could tell which demos are made of an example.
            raise UserError(
                f"{options.trainset_name} must name the inputs that the examples of the pool have, "
                f"{sorted(map(list, pooled))}; got {sorted(map(list, named - pooled))}: name these in with_inputs"
            )


def _forget_earlier_compile(program: dspy.Module) -> None:
    """Remove what an earlier optimizer attached: copies would hold it, and change the fingerprint of each compile."""
    attributes = vars(program)
    attributes.pop("calibration_report", None)
    report = attributes.pop("reorder_report", None)
    candidates = attributes.get("candidate_programs")
    if isinstance(candidates, list) and all(map(_is_candidate, candidates)):
        none_compared = isinstance(report, Mapping) and not report.get("candidates")
        if candidates or none_compared:  # Other empty lists are the user's own.
            del program.candidate_programs
    if isinstance(program, CalibratedProgram) and program.calibration is not None:
        program.calibration = replace(program.calibration, prompt=None)  # Its demos are to change.


def _is_candidate(value: object) -> bool:
    return isinstance(value, Mapping) and {"score", "program"} <= value.keys()

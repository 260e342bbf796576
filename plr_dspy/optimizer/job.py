"""The job of a compile: what it is given, checked and laid out before the first program call."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import dspy

from plr_dspy.compilation.plan import NOTHING_TO_DO, Plan, most_calls
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import LabelOutput, label_output
from plr_dspy.metrics.over_set import SetMetric
from plr_dspy.programs.checks import FINDS, check_given
from plr_dspy.programs.copies import ProgramFactory
from plr_dspy.programs.identity import digest
from plr_dspy.programs.slots import PromptSlots
from plr_dspy.programs.splits import Examples, Splits, check_splits, make_splits
from plr_dspy.report.text import FEW_EXAMPLES
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.scoring.ledger import Cell
from plr_dspy.search.space import Ordering

if TYPE_CHECKING:
    from plr_dspy.optimizer.base import Reorderer

logger = logging.getLogger(__name__)

LIMITS = ("num_threads", "max_errors", "max_seconds", "max_cost")
"""Arguments that limit what a compile may take, and do not decide its course."""

NAMED_ELSEWHERE = {*LIMITS, "metric", "seed", "log_dir", "accept_changes", "display_progress"}
"""Arguments that do not decide the result, or that an identity or the settings of a job name otherwise."""


@dataclass(frozen=True)
class Attempt:
    """What a teacher makes of an example.

    Attributes:
        example: Its number in the trainset.
        key: Of its cell in the ledger.
        demos: By predictor; empty where the answer was not right.
        cell: That cell; before the attempt is made, one without an error.
    """

    example: int
    key: tuple[str, str]
    demos: dict[str, Any]
    cell: Cell


@dataclass(frozen=True)
class Job:
    """A compile, prepared.

    Attributes:
        program: A copy of the student, or of what the student calibrates if that is to be calibrated anew.
        calibrated_student: That student; None for others.
        examples: All that were passed.
        original: What the user has: the identity, `WITHOUT_DEMOS`, or an arrangement.
        demo_examples: The examples of the trainset that demos are made of, by their numbers.
        findable: Those that the demos are made of which are found for each input.
        teacher: Makes demos; None where the student does.
        attempts: At demos: as many as there may be, then those that were made. The plan knows nothing of their calls.
    """

    optimizer: Reorderer
    seed: int
    program: dspy.Module
    slots: PromptSlots
    splits: Splits
    plan: Plan
    original: Ordering
    examples: Sequence[dspy.Example]
    calibrated_student: CalibratedProgram | None = None
    demo_examples: Mapping[int, dspy.Example] = field(default_factory=dict)
    findable: Mapping[int, dspy.Example] = field(default_factory=dict)
    teacher: dspy.Module | None = None
    attempts: Sequence[Attempt] = ()

    @property
    def scored_examples(self) -> list[dspy.Example]:
        """The examples of the train split, then those of the selection split, as cells number them."""
        return [*self.splits.train, *self.splits.selection]

    def planned(self, **told: Any) -> Plan:
        """The plan of the optimizer; where its search can score every ordering, the rest is for the race.

        That race is of what is none of them: what the user has, and what is made of the best.
        """
        sizes: Any = {"num_train": len(self.splits.train), "num_selection": len(self.splits.selection)}
        space = self.slots.space
        plan = self.optimizer.plan(**sizes, num_distinct=space.num_distinct, **told)
        every = space.num_distinct * plan.num_train_examples
        if not plan.racing or plan.search_calls < every:
            return plan
        others = self.slots.most_further + (not space.holds(self.original))
        left = plan.search_calls + plan.race_calls - every
        return replace(plan, most_searched=every, race_calls=min(left, others * plan.num_train_examples))

    @property
    def models(self) -> list[dspy.BaseLM]:
        """The language models of the predictors."""
        models = [each.lm or dspy.settings.lm for _, each in self.program.named_predictors()]
        return [lm for lm in models if lm is not None]

    def arguments(self) -> dict[str, Any]:
        """The user's arguments that decide the result, as plain data."""
        optimizer, metric = self.optimizer, self.optimizer.metric
        # What users' subclasses and trackers keep in an optimizer beside these may be large, secret or never the same.
        names = [each.name for each in fields(optimizer) if each.name not in NAMED_ELSEWHERE]
        given = {name: getattr(optimizer, name) for name in names}
        if (rule := given.get("update")) is not None:
            parameters = fields(rule) if is_dataclass(rule) else ()
            given["update"] = {"name": rule.name, **{each.name: getattr(rule, each.name) for each in parameters}}
        metric_name = getattr(metric, "__name__", type(metric).__name__)
        return {
            "method": optimizer.name,
            **as_plain_data(given),
            "seed": self.seed,
            "metric": repr(metric) if isinstance(metric, SetMetric) else metric_name,
        }

    def settings(self) -> dict[str, Any]:
        """Everything that decides the result, and the limits of the compile, as plain data."""
        return {
            **self.arguments(),
            "scored_on": self.optimizer.scored_on,
            "adapter": type(dspy.settings.adapter or dspy.ChatAdapter()).__name__,
            "models": sorted({str(lm.model) for lm in self.models}),
            "num_train": len(self.splits.train),
            "num_selection": len(self.splits.selection),
            **asdict(self.plan),
            **{name: getattr(self.optimizer, name) for name in LIMITS},
            "most_useful_calls": most_calls(len(self.scored_examples)),
        }


def as_plain_data(value: Any) -> Any:
    """An argument as plain data; of objects a digest, which is the same in every process."""
    if isinstance(value, Mapping):
        return {str(key): as_plain_data(part) for key, part in value.items()}
    return value if isinstance(value, (bool, int, float, str, type(None))) else digest(value)


def prepare(
    optimizer: Reorderer,
    student: dspy.Module,
    trainset: Examples,
    valset: Examples | None,
    *,
    seed: int,
    teacher: Any = None,
) -> Job:
    """Check the arguments of a compile, and lay it out; no program call is made.

    Neither the program's demos nor the `others` that choices name score. Where all choices give the same prompt,
    nothing is planned. Too few examples, and too small a budget, are a ValueError.
    """
    valset, rng, name = [] if valset is None else valset, random.Random(seed), optimizer.trainset_name
    program, calibrated = _checked_copy(optimizer, student, trainset, valset)
    choices = optimizer._choices(program, trainset, valset, rng, teacher)
    others, predictors = choices.pop("others", ()), program.named_predictors()
    demos = [demo for _, predictor in predictors for demo in predictor.demos]
    prompted = {field for _, predictor in predictors for field in predictor.signature.input_fields}
    splits = make_splits(
        trainset, valset, [*demos, *others], rng, balanced=optimizer.balanced, name=name, prompted=prompted
    )
    examples = [*trainset, *valset]
    given: dict[str, Any] = {"calibrated_student": calibrated, "splits": splits, "examples": examples, **choices}
    job = Job(optimizer, seed, program, plan=NOTHING_TO_DO, **given)
    if job.slots.space.num_distinct < 2 or optimizer.max_metric_calls == 0:
        return job
    cure = "pass more examples" + ", or leave some of these out of candidates" * bool(others and not job.demo_examples)
    check_splits(splits, num_trainset=len(trainset), num_valset=len(valset), name=name, cure=cure)
    if (num_usable := len(job.scored_examples)) < FEW_EXAMPLES and optimizer.chooses_by_score:
        logger.warning(
            "only %d of %d examples can score orders (not those that are demos, or given twice). On so few, chance "
            "alone moves the score of an order by %.2f, so little can be found: pass 100 examples or more",
            *(num_usable, len(examples), (0.25 / num_usable) ** 0.5),
        )
    job = replace(job, plan=job.planned())
    if isinstance(optimizer.metric, SetMetric):
        compares = job.plan.num_selection_examples > 0
        optimizer.metric.check(*((splits.train, splits.selection) if compares else (job.scored_examples,)))
    return job


def _checked_copy(
    optimizer: Reorderer, student: dspy.Module, trainset: Examples, valset: Examples
) -> tuple[dspy.Module, CalibratedProgram | None]:
    """Check what the user passes, and return `program` and `calibrated_student` of the job."""
    optimizer.check_together()  # They may have been set since.
    calibrated = None
    if isinstance(student, CalibratedProgram) and optimizer.calibrate is not False:
        calibrated, student = student, student.program
    datasets: dict[str, Any] = {optimizer.trainset_name: trainset, "valset": valset}
    check_given(student, name=optimizer.student_name, **datasets)
    finds = any(isinstance(predictor, RetrievingPredict) for predictor in student.predictors())
    if finds and not optimizer.orders_found:
        raise ValueError(
            f"{optimizer.student_name} finds its demos for each input, which only PLReorder orders: pass the program "
            f"that it was made of to PLFewShot(metric, demos='retrieved'), {FINDS}"
        )
    named = {tuple(sorted(each.inputs().keys())) for each in (*trainset, *valset)}
    for predictor in student.predictors():
        pooled = predictor.retrieval.input_names if isinstance(predictor, RetrievingPredict) else set()
        if pooled and named - pooled:  # Nobody could tell which demos are made of an example.
            raise ValueError(
                f"{optimizer.trainset_name} must name the inputs that the examples of the pool have, "
                f"{sorted(map(list, pooled))}; got {sorted(map(list, named - pooled))}: name these in with_inputs"
            )
    program = ProgramFactory(student).build({})
    # What an earlier optimizer found: copies would hold copies of it, and no report is twice the same, so that no
    # `log_dir` would be found again.
    report, found = vars(program).pop("reorder_report", None), vars(program).get("candidate_programs")
    are_candidates = isinstance(found, list) and all(
        isinstance(part, Mapping) and {"score", "program"} <= part.keys() for part in found
    )
    none_compared = isinstance(report, Mapping) and not report.get("candidates")
    if are_candidates and (found or none_compared):  # Other empty lists are of the user's own.
        del program.candidate_programs
    if isinstance(program, CalibratedProgram) and program.calibration is not None:
        program.calibration = replace(program.calibration, prompt=None)  # Its demos are to change.
    output, examples = label_output(program), [*trainset, *valset]
    if isinstance(output, LabelOutput) and (said := output.strange(examples)):
        logger.warning(f"{said}: no answer is right there, unless the metric reads others")
    optimizer.check(program, trainset)
    return program, calibrated

"""PLFewShot: the DSPy optimizer that chooses which demos a program shows, how many, and in what order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import dspy
from pydantic import AfterValidator, Field

from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.path import Compilation
from plr_dspy.compilation.plan import BUDGETS, NOTHING_TO_DO, Plan, make_plan
from plr_dspy.optimizer.base import Session
from plr_dspy.optimizer.bootstrapping import Attempt, Bootstrapper, bootstrapped
from plr_dspy.optimizer.choices import Choice, best_choices, with_choices
from plr_dspy.optimizer.job import Job
from plr_dspy.optimizer.plreorder import PLReorder
from plr_dspy.optimizer.pool import Draft, check_candidates, check_teacher, make_draft, pools_of
from plr_dspy.plackett_luce.updates import smoothing_of
from plr_dspy.programs.arguments import Count, Number, WholeNumber, arguments
from plr_dspy.programs.calls import Work
from plr_dspy.programs.checks import demo_obstacle
from plr_dspy.programs.copies import ProgramFactory
from plr_dspy.programs.identity import digest
from plr_dspy.programs.slots import OWN, PoolSlots

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""Examples that a teacher is run on, at most, for each demo wanted: an attempt that fails makes none."""

BOOTSTRAP_SHARE = 0.25
"""Of the dollars, at most, for demos that a teacher makes."""


@arguments
class PLFewShot(PLReorder):
    """Chooses which demos a program shows, how many, and in what order, for a budget of program calls.

    Candidates are the student's own demos, labelled examples of the trainset, and demos that a teacher's right answers
    make (DSPy's `BootstrapFewShot`). A quarter of the trainset, 50 examples at most, becomes demos, and the rest
    scores: no example is ever scored with itself, or with another of the same inputs, in the prompt. The student as it
    is competes, and stays where nothing is expected to do better.

    Args:
        metric: As in `PLReorder`. When demos are bootstrapped, a metric with a third parameter gets DSPy's ``trace``.
        max_demos, min_demos: Demos that each predictor shows; a predictor for which there are fewer can show all.
        candidates: What the demos are made of: "labeled" examples of the trainset, demos "bootstrapped" from them, or
            "both", which bootstraps none where every output is a label that the examples have; or a list of demos, for
            every predictor whose prompt shows them. The student's own always take part.
        max_demo_tokens: Hard limit on the tokens of all demos that are shown together, as GPT-4o counts them; None for
            none. Only the student as it is may have more.
        max_bootstrapped: Examples whose answers make demos; a teacher is run on twice as many at most, one after the
            other. These calls are part of the budget.
        metric_threshold: Least score of an answer that makes a demo; None takes any but 0.
        signal, calibrate, update, max_metric_calls, max_seconds, max_cost, stop_at_score, patience, min_probability,
            num_threads, max_errors, seed, log_dir, accept_changes, display_progress: As in `PLReorder`.
            Demos that a teacher makes get a quarter of `max_cost` at most; a reply of the teacher that cannot be read
            makes no demo, and is no failure.
        auto: Budget in program calls: "light" (1,000), "medium" (3,000) or "heavy" (10,000). "paper" runs PLR
            Algorithm 1 with draws cut off after a number of demos, which has a distribution of its own.

    Attributes:
        report: As of `PLReorder`; None where a compile ended before its search began. Demos are named by their numbers
            in the pool, which ``report.slots`` lists with their origins; ``report.best_by_number`` has the best
            arrangement found of each number of demos.
        best_program: As of `PLReorder`.

    Raises:
        TypeError, ValueError: for arguments out of range; the message says what to pass.
    """

    name = "PLFewShot"
    num_demos: ClassVar[None] = None  # type: ignore[misc]
    num_iterations: ClassVar[None] = None  # type: ignore[misc]
    num_samples: ClassVar[None] = None  # type: ignore[misc]
    elite_fraction: ClassVar[None] = None  # type: ignore[misc]
    num_final_draws: ClassVar[None] = None  # type: ignore[misc]

    max_demos: Count = 8
    min_demos: Annotated[WholeNumber, Field(ge=0)] = 0
    candidates: Annotated[Any, AfterValidator(check_candidates)] = "both"
    max_demo_tokens: Count | None = None
    max_bootstrapped: Count = 8
    metric_threshold: Number | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._draft: Draft | None = None
        self._found: tuple[Job, Work, dict[int, Choice]] | None = None

    def check_together(self) -> None:
        """Raise a ValueError where arguments do not go together, or a TypeError for an update that cannot choose."""
        super().check_together()
        if self.min_demos > self.max_demos:
            raise ValueError(f"min_demos must be at most max_demos={self.max_demos}; got {self.min_demos}")
        smoothing_of(self.update)

    def plan(self, *, num_train: int, num_selection: int, num_distinct: int, signal: str = "score") -> Plan:
        """Lay out what follows the calls that make demos."""
        budget = self.max_metric_calls or BUDGETS.get(self.auto or "")
        try:
            return make_plan(
                self.auto,
                max_metric_calls=None if budget is None else max(1, budget - self._spent),
                num_train=num_train,
                num_selection=num_selection,
                num_distinct=num_distinct,
                signal=signal,
                searched="demos",
            )
        except ValueError as error:
            if not self._spent:
                raise
            raise ValueError(
                f"max_metric_calls={budget} is too small: {self._spent} calls may go to bootstrapped demos, and of the "
                f"rest, {error}. Raise it by as much, lower max_bootstrapped, or pass candidates='labeled'"
            ) from error

    def program_with(self, num_demos: int) -> dspy.Module:
        """Make the program with the best arrangement that the last compile found of a number of demos.

        Args:
            num_demos: Shown by all predictors together.

        Raises:
            ValueError: when nothing was scored with so many; the message says which numbers there are.
        """
        if self._found is None:
            raise ValueError("program_with needs a compile: call compile first")
        job, work, choices = self._found
        if type(num_demos) is not int or num_demos not in choices:
            raise ValueError(
                f"num_demos must be one of {list(choices)}, which were scored; got {num_demos!r}"
            )
        choice = choices[num_demos]
        return self._program(job, work, choice.ordering, choice.offsets, choice.shares)

    def _finished(
        self,
        job: Job,
        work: Work,
        outcome: Outcome,
        compilation: Compilation,
        shares: Sequence[float],
    ) -> dspy.Module:
        """Return the program with the demos chosen; complete the report."""
        choices = best_choices(compilation, outcome)
        self._found = (job, work, choices)
        assert self.report is not None
        self.report = with_choices(self.report, job, choices)
        return super()._finished(job, work, outcome, compilation, shares)

    def _prepared(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        valset: list[dspy.Example] | None,
        seed: int,
    ) -> Job:
        """Check the arguments, and lay out the search as it will be after as many attempts as there may be."""
        self._found = None
        self._draft = make_draft(self, student, trainset=trainset, valset=valset, seed=seed)
        most = self._most_attempts(self._draft)
        self._share_before = BOOTSTRAP_SHARE if most else 0.0
        return self._job(self._draft, self._draft.stand_ins(most))

    def _teacher(self, teacher: Any) -> dspy.Module | None:
        return check_teacher(teacher)

    def _ready(self, job: Job, opened: Session, teacher: Any) -> Job:
        """Make the demos that a teacher makes, and lay out the search among them."""
        draft = self._draft
        assert draft is not None
        if not (most := self._most_attempts(draft)):
            return job
        if self.calibrate is not False or self.signal == "logprobs":
            self.work(job)  # which raises where that cannot be, before any call
        bootstrapper = Bootstrapper(
            draft.program,
            teacher,
            metric=self.metric,
            threshold=self.metric_threshold,
            examples=draft.part,
            num_labelled=self.max_demos,
            max_errors=self.max_errors,
        )
        opened.budget.allow(BOOTSTRAP_SHARE, seconds=1.0)
        if opened.budget.max_calls is not None:
            opened.budget.max_calls += most  # The plan is one for what follows.
        name = f"bootstrapped by {digest([teacher, self.metric_threshold, self.max_demos, draft.seed])}"
        attempts = bootstrapped(
            bootstrapper,
            draft.part,
            {number: (name, digest(example)) for number, example in draft.part.items()},
            num_wanted=self.max_bootstrapped,
            max_attempts=most,
            ledger=opened.ledger,
            budget=opened.budget,
            on_call=opened.bar.update,
        )
        job = self._job(draft, attempts, made=True)
        if job.plan.max_metric_calls is not None:
            opened.budget.max_calls = job.plan.max_metric_calls + len(attempts)
        return job

    def _job(self, draft: Draft, attempts: list[Attempt], *, made: bool = False) -> Job:
        """Lay out the search after attempts at bootstrapped demos, or before they are made, after as many at most.

        Raises:
            ValueError: when there is no demo, or none that keeps to the limits.
        """
        self._spent = len(attempts)
        labelled = {} if made and self.candidates == "bootstrapped" else draft.part
        pools = pools_of(draft.program, labelled=labelled, attempts=attempts, given=draft.given)
        if not any(pools.values()) and not attempts:
            raise ValueError(
                "there are no demos to choose from: the student has none, and no prompt would show the candidates. "
                "Pass more examples in trainset (a quarter of it becomes demos), or candidates with the fields of the "
                "signature"
            )
        slots = PoolSlots(
            draft.program,
            pools,
            min_demos=self.min_demos,
            max_demos=self.max_demos,
            max_tokens=self.max_demo_tokens,
        )
        if not made:
            others = {
                slot.predictor: [each.demo for each in slot.pool if each.origin != OWN]
                for slot in slots.slots
            }
            if obstacle := demo_obstacle(ProgramFactory(draft.program).build(others)):
                logger.warning("of the demos to choose from, %s", obstacle)
        known = tuple(attempts) if made else ()
        job = Job(self, draft.seed, draft.program, slots, draft.splits, NOTHING_TO_DO, slots.original, known)
        return job if slots.space.num_distinct < 2 else replace(job, plan=self.plan(**job.sizes))

    def _most_attempts(self, draft: Draft) -> int:
        """Examples that a teacher may be run on."""
        wanted = self.candidates == "bootstrapped" or (self.candidates == "both" and not draft.labels_say_all)
        return min(len(draft.part), ATTEMPTS * self.max_bootstrapped) if wanted else 0

"""PLFewShot: the DSPy optimizer that chooses which demos a program shows, how many, and in what order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy

from plr_dspy.compilation.budget import BUDGETS, make_plan
from plr_dspy.compilation.outcome import Outcome
from plr_dspy.compilation.plan import Plan
from plr_dspy.optimizer.attempts import Attempt, kept_attempts
from plr_dspy.optimizer.bootstrapping import Bootstrapper, bootstrapped
from plr_dspy.optimizer.choices import Choice, best_choices, choice_of, with_choices
from plr_dspy.optimizer.cost_estimate import Estimate, estimate
from plr_dspy.optimizer.draft import Draft, Limits, check_candidates, check_teacher, make_draft, make_job
from plr_dspy.optimizer.identity import bootstrap_identity
from plr_dspy.optimizer.job import Job
from plr_dspy.optimizer.money import make_purse
from plr_dspy.optimizer.plreorder import PLReorder
from plr_dspy.orderings.updates import UpdateRule
from plr_dspy.programs.calls import Metric
from plr_dspy.programs.copies import ProgramFactory
from plr_dspy.programs.validation import as_folder, count, number, whole_number
from plr_dspy.report.text import MIN_PROBABILITY
from plr_dspy.scoring.objectives import SearchObjective

ATTEMPTS = 2
"""Examples that a teacher is run on, at most, for each demo wanted: an attempt that fails makes none."""

BOOTSTRAP_SHARE = 0.25
"""Of the dollars, at most, for demos that a teacher makes."""


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
            num_threads, max_errors, seed, log_dir, accept_changes, track_stats, display_progress: As in `PLReorder`.
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
    takes_num_demos = False

    def __init__(
        self,
        metric: Metric,
        *,
        max_demos: int = 8,
        min_demos: int = 0,
        candidates: str | Sequence[Any] = "both",
        max_demo_tokens: int | None = None,
        max_bootstrapped: int = 8,
        metric_threshold: float | None = None,
        signal: str = "auto",
        calibrate: bool | Mapping[Any, float] = False,
        update: str | UpdateRule = "mle",
        auto: str | None = "light",
        max_metric_calls: int | None = None,
        max_seconds: float | None = None,
        max_cost: float | None = None,
        stop_at_score: float | None = None,
        patience: int | None = None,
        min_probability: float = MIN_PROBABILITY,
        num_threads: int | None = None,
        max_errors: int | None = None,
        seed: int = 0,
        log_dir: str | Path | None = None,
        accept_changes: bool = False,
        track_stats: bool = False,
        display_progress: bool = True,
    ) -> None:
        super().__init__(
            metric,
            signal=signal,
            calibrate=calibrate,
            update=update,
            auto=auto,
            max_metric_calls=max_metric_calls,
            max_seconds=max_seconds,
            max_cost=max_cost,
            stop_at_score=stop_at_score,
            patience=patience,
            min_probability=min_probability,
            num_demos=None,
            num_threads=num_threads,
            max_errors=max_errors,
            seed=seed,
            log_dir=log_dir,
            accept_changes=accept_changes,
            track_stats=track_stats,
            display_progress=display_progress,
        )
        self.max_demos = count("max_demos", max_demos)
        self.min_demos = count("min_demos", min_demos, least=0, most=self.max_demos)
        self.candidates = check_candidates(candidates)
        self.max_demo_tokens = whole_number("max_demo_tokens", max_demo_tokens)
        self.max_bootstrapped = count("max_bootstrapped", max_bootstrapped)
        self.metric_threshold = number("metric_threshold", metric_threshold)
        self._spent = 0
        self._found: tuple[Job, dict[int, Choice]] | None = None

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
            TypeError, ValueError: when it is no whole number, or nothing was scored with so many; the message says
                which numbers there are.
        """
        if self._found is None:
            raise ValueError("program_with needs a compile: call compile first")
        job, choices = self._found
        choice = choice_of(choices, num_demos)
        program = ProgramFactory(job.program).build(job.slots.demos(choice.ordering))
        program = self.calibrated(job, program, choice.offsets, choice.shares)
        program._compiled = True
        return program

    def estimate(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        valset: list[dspy.Example] | None = None,
        seed: int | None = None,
    ) -> Estimate:
        """Say what `compile` with these arguments would cost; no program call is made.

        The prompts are taken to show half as many demos as they may.

        Raises:
            TypeError, ValueError: for bad arguments, as `compile` does.
        """
        draft = make_draft(
            self, student, candidates=self.candidates, trainset=trainset, valset=valset, seed=self._seed(seed)
        )
        calls = self._most_attempts(draft)
        job = self._job(draft, draft.stand_ins(calls))
        make_purse(job, self.max_cost, share=BOOTSTRAP_SHARE if calls else 0.0)
        return estimate(job, bootstrap_calls=calls, max_cost=self.max_cost, max_seconds=self.max_seconds)

    def finished(
        self, job: Job, compiled: dspy.Module, *, outcome: Outcome, objective: SearchObjective
    ) -> dspy.Module:
        """Return the program with the demos chosen; complete the report."""
        choices = best_choices(job, outcome, objective)
        self._found = (job, choices)
        assert self.report is not None
        self.report = with_choices(self.report, job, choices)
        return super().finished(job, compiled, outcome=outcome, objective=objective)

    def _prepared(
        self,
        student: dspy.Module,
        *,
        trainset: list[dspy.Example],
        teacher: Any,
        valset: list[dspy.Example] | None,
        seed: int,
    ) -> Job:
        """Check the arguments, make the demos that a teacher makes, and lay out the search."""
        self._found = None
        teacher = check_teacher(teacher)
        draft = make_draft(
            self, student, candidates=self.candidates, trainset=trainset, valset=valset, seed=seed
        )
        most = self._most_attempts(draft)
        job = self._job(draft, draft.stand_ins(most))
        if not most:
            return job
        if self.calibrate is not False or self.signal == "logprobs":
            self.setup(job)  # which raises where that cannot be, before any call
        attempts = self._bootstrap(draft, job, teacher, most)
        return self._job(draft, attempts, made=True)

    def _job(self, draft: Draft, attempts: list[Attempt], *, made: bool = False) -> Job:
        """Lay out the search after attempts at bootstrapped demos, or before they are made, after as many at most."""
        self._spent = len(attempts)
        labelled = {} if made and self.candidates == "bootstrapped" else draft.part
        limits = Limits(self.min_demos, self.max_demos, self.max_demo_tokens)
        return make_job(self, draft, labelled=labelled, attempts=attempts, made=made, limits=limits)

    def _most_attempts(self, draft: Draft) -> int:
        """Examples that a teacher may be run on."""
        wanted = self.candidates == "bootstrapped" or (self.candidates == "both" and not draft.labels_say_all)
        return min(len(draft.part), ATTEMPTS * self.max_bootstrapped) if wanted else 0

    def _bootstrap(self, draft: Draft, job: Job, teacher: dspy.Module | None, most: int) -> list[Attempt]:
        """Run the teacher.

        Raises:
            RuntimeError: when the time is up before the end.
        """
        purse = make_purse(job, self.max_cost, teacher=teacher, share=BOOTSTRAP_SHARE)
        purse.allowance = None if self.max_cost is None else BOOTSTRAP_SHARE * self.max_cost
        bootstrapper = Bootstrapper(
            draft.program,
            teacher,
            metric=self.metric,
            threshold=self.metric_threshold,
            examples=draft.part,
            num_labelled=self.max_demos,
            max_errors=self.max_errors,
        )
        folder = as_folder("log_dir", self.log_dir)
        identity = bootstrap_identity(job, teacher, draft.part.values())
        with kept_attempts(folder, identity, draft.part, accept_changes=self.accept_changes) as kept:
            return bootstrapped(
                bootstrapper,
                draft.part,
                kept,
                num_wanted=self.max_bootstrapped,
                max_attempts=most,
                max_seconds=self.max_seconds,
                purse=purse,
            )

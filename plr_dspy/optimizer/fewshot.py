"""PLFewShot: the DSPy optimizer that chooses which demos a program shows, how many, and in what order."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import dspy
from pydantic import AfterValidator, Field, SkipValidation

from plr_dspy.compilation.choice import Outcome
from plr_dspy.compilation.plan import NOTHING_TO_DO, Plan, ProblemSize, make_plan
from plr_dspy.compilation.run import CompileRun
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.optimizer.base import OpenCompile
from plr_dspy.optimizer.demos import TeacherWork, demo_examples, make_attempts, pools_of, stand_ins
from plr_dspy.optimizer.expected_scores import best_by_number, compare_ways, expected_scores
from plr_dspy.optimizer.learning import LearningOptimizer
from plr_dspy.optimizer.report_builder import FinishedProgram
from plr_dspy.optimizer.setup import Attempt, CompileOptions, CompileSetup, DemoChoices
from plr_dspy.plackett_luce.updates import smoothing_of
from plr_dspy.programs.calls import ProgramEvaluator
from plr_dspy.programs.checks import Count, Number, WholeNumber, arguments, json_obstacle, shown
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.slots import OWN, PooledDemo, PoolSlots, PromptSlots
from plr_dspy.programs.splits import Examples, by_content, source_of
from plr_dspy.retrieval.nearest import NearestDemos, Pool
from plr_dspy.retrieval.predict import CalledBlindly, RetrievingPredict
from plr_dspy.retrieval.slots import RetrievalSlots, make_pools, variations
from plr_dspy.scoring.causes import cure_of
from plr_dspy.scoring.run_log import FAILED
from plr_dspy.scoring.scorer import CellScorer
from plr_dspy.statistics.calibration import Array

logger = logging.getLogger(__name__)

CANDIDATES = ("both", "labeled", "bootstrapped")  # kinds of demos that are made of the trainset


def _check_candidates(candidates: Any) -> str | list[Any]:
    """The argument as it was passed, a list as a list of its own; an error for anything else."""
    if isinstance(candidates, str) and candidates in CANDIDATES:
        return candidates
    if isinstance(candidates, str) or not isinstance(candidates, Sequence) or not candidates:
        raise UserError(f"candidates must be one of {list(CANDIDATES)}, or a list of demos; got {shown(candidates)}")
    for number, demo in enumerate(candidates):
        if not isinstance(demo, (dspy.Example, Mapping)):
            raise UserTypeError(f"candidates[{number}] must be a dspy.Example or a dict; got {type(demo).__name__}")
    return list(candidates)


def _warn_of_demos(program: dspy.Module, slots: PoolSlots, *, beside: PromptSlots | None = None) -> None:
    """Warn if there are demos to choose from that JSON cannot hold, which nothing `beside` them has told already."""
    known = json_obstacle(program) if beside is None else json_obstacle(_with_pool(program, beside))
    obstacle = json_obstacle(_with_pool(program, slots))
    if obstacle and obstacle != known:
        logger.warning("of the demos to choose from, %s", obstacle)


def _with_pool(program: dspy.Module, slots: PromptSlots) -> dspy.Module:
    """Return the program with all demos to choose from that are not its own."""
    demos = {slot.predictor: [each.demo for each in slot.pool if each.origin != OWN] for slot in slots.slots}
    if isinstance(slots, RetrievalSlots):
        demos |= {name: pool.demos for name, pool in slots.found.items()}
    return ProgramFactory(program).build(demos)


def _teacher_of(teacher: Any) -> dspy.Module | None:
    """Return the program that makes demos, from the argument as DSPy's optimizers take it."""
    if isinstance(teacher, (list, tuple)):
        teacher = teacher[0] if teacher else None
    if isinstance(teacher, CalibratedProgram):
        teacher = teacher.program  # Its demos are made as the student's are.
    if teacher is not None and not isinstance(teacher, dspy.Module):
        raise UserTypeError(f"teacher must be a dspy.Module; got {type(teacher).__name__}")
    return teacher


def _too_few_examples(trainset: Examples, valset: Examples) -> str:
    """Say that no example can become a demo."""
    beside = " that valset does not hold" if valset else ""
    of_valset = {source_of(example.inputs()) for example in valset}
    number = len({source_of(example.inputs()) for example in trainset} - of_valset)
    return (
        f"trainset must hold more examples with different inputs{beside}, as some are needed as demos; it has "
        f"{number} of these: pass 100 or more such examples, or demos of your own in candidates"
    )


def _without_found_demos(student: dspy.Module) -> dspy.Module:
    """Return a copy of a student that finds its demos, which shows none of these."""
    program = ProgramFactory(student).build({})
    for predictor in program.predictors():
        if isinstance(predictor, RetrievingPredict):
            predictor.find_no_more()
    return program


@arguments
class PLFewShot(LearningOptimizer):
    """Choose which demos a program shows, how many, and in what order, for a budget of program calls.

    Candidates are the student's own demos, labelled examples of the trainset, and demos that a teacher's right answers
    make (DSPy's `BootstrapFewShot`). A quarter of the trainset, 50 examples at most, becomes demos, and the rest
    scores: no example is scored with itself, or with one of the same inputs, in the prompt. The student as it is
    competes, and stays unless something is three times as likely to be better as to be worse.

    Args:
        metric: As in `PLReorder`. When demos are bootstrapped, a metric with a third parameter gets DSPy's ``trace``.
        demos: "fixed" shows the same demos to every input. "retrieved" shows each input the most similar ones of the
            whole trainset in the best of five ways: the nearest last, half as many, rather those with frequent labels
            among the neighbours, rather those unlike each other, the nearest first. With "auto" both compete. The
            result and its file hold the trainset. With ``max_metric_calls=0`` no call is made: the nearest are shown
            last, and from a pool of 320 or more, rather those with frequent labels.
        embedder: A ``dspy.Embedder`` that says how similar inputs are; None compares their words (TF-IDF).
        max_demos, min_demos: Demos that each predictor shows; if there are fewer, it can show all.
        candidates: What makes demos: "labeled" examples of the trainset, demos "bootstrapped" from them, or "both",
            which bootstraps none if every output is a label that the examples have; or a list of demos, for every
            predictor whose prompt shows them. The student's own always take part.
        max_demo_tokens: Limit on the tokens of all demos together, as GPT-4o counts them. Only the student as it is may
            have more.
        max_bootstrapped: Examples whose answers make demos. A teacher is run on twice as many at most, one after the
            other, as part of the budget.
        metric_threshold: Least score of an answer that makes a demo; None takes any above 0.
        signal, calibrate, update, max_metric_calls, max_seconds, max_cost, stop_at_score, patience, min_probability,
            num_threads, max_errors, seed, log_dir, accept_changes, display_progress: As in `PLReorder`. A teacher may
            use a quarter of `max_cost`. Its replies that cannot be read make no demo, and are no failures.
        auto: Budget in program calls: "light" (1,000), "medium" (3,000) or "heavy" (10,000).

    Attributes:
        report: As in `PLReorder`; None if a compile ended before its search began. Demos are named by their numbers in
            the pool, which ``report.slots`` lists with their origins. ``report.best_by_number`` has the best
            arrangement of each number of demos.
        best_program: As in `PLReorder`.

    Raises:
        TypeError, ValueError: If an argument is out of range; the message says what to pass.
    """

    name = "PLFewShot"
    chooses_demos: ClassVar[bool] = True
    num_demos: ClassVar[None] = None  # type: ignore[misc]

    auto: Literal["light", "medium", "heavy"] | None = "light"  # type: ignore[misc]
    demos: Literal["auto", "fixed", "retrieved"] = "fixed"
    embedder: SkipValidation[Callable[..., Any] | None] = None
    max_metric_calls: Annotated[WholeNumber, Field(ge=0)] | None = None
    max_demos: Count = 8
    min_demos: Annotated[WholeNumber, Field(ge=0)] = 0
    candidates: Annotated[Any, AfterValidator(_check_candidates)] = "both"
    max_demo_tokens: Count | None = None
    max_bootstrapped: Count = 8
    metric_threshold: Number | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._found: dict[int, Callable[[], dspy.Module]] = {}  # by number of demos
        self._embedded: dict[int, tuple[Any, dict[str, Array]]] = {}  # by their ids, embedders and what they made

    def check_together(self) -> None:
        """Raise a ValueError where arguments do not go together, or a TypeError for an update that cannot choose."""
        super().check_together()
        if self.min_demos > self.max_demos:
            raise UserError(f"min_demos must be at most max_demos={self.max_demos}; got {self.min_demos}")
        smoothing_of(self.update)
        without_calls = self.demos == "retrieved" and self.calibrate is False and self.candidates != "bootstrapped"
        if self.max_metric_calls == 0 and not without_calls:
            needed = "demos='retrieved', no calibrate, and candidates that no teacher makes"
            raise UserError(f"max_metric_calls=0 makes no call: it needs {needed}; or raise it")
        if self.embedder is not None and not callable(self.embedder):
            told = f"embedder must be one, and not its name; got {shown(self.embedder)}"
            raise UserError(f"{told}: pass dspy.Embedder({shown(self.embedder)})")
        if self.demos == "fixed" and self.embedder is not None:
            raise UserError("embedder needs demos that are found for each input: pass demos='auto' or 'retrieved'")

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        return make_plan(self.auto, size, max_metric_calls=self.max_metric_calls, signal=signal, searched="demos")

    def program_with(self, num_demos: int) -> dspy.Module:
        """Make the program with the best arrangement that the last compile found of a number of demos.

        Args:
            num_demos: Shown by all predictors together.

        Raises:
            ValueError: when nothing was scored with so many; the message says which numbers there are.
        """
        if self.report is None or not self._found:
            raise UserError("program_with needs scored demos: call compile with a budget of calls first")
        if type(num_demos) is not int or num_demos not in self._found:
            raise UserError(f"num_demos must be one of {list(self._found)}: so many were scored; got {num_demos!r}")
        return self._found[num_demos]()

    def _options(self) -> CompileOptions:
        return replace(
            super()._options(),
            max_demos=self.max_demos,
            max_bootstrapped=self.max_bootstrapped,
            metric_threshold=self.metric_threshold,
        )

    def _choices(
        self, program: dspy.Module, trainset: Examples, valset: Examples, rng: random.Random, teacher: Any
    ) -> DemoChoices:
        """Return what can be chosen once a teacher has made as many attempts as there may be."""
        given = self._given
        student: dspy.Module | None = None
        if any(isinstance(predictor, RetrievingPredict) for predictor in program.predictors()):
            student = program
            program = _without_found_demos(student)
        examples: Mapping[int, dspy.Example] = {}
        if not given:
            examples = demo_examples(trainset, valset, rng)
        if not (student or given or examples or any(predictor.demos for predictor in program.predictors())):
            raise UserError(_too_few_examples(trainset, valset))
        attempts: list[Attempt] = []
        findable: Mapping[int, dspy.Example] = {}
        if self.max_metric_calls != 0 and self.candidates in ("both", "bootstrapped"):
            attempts = stand_ins(program, examples, self.max_bootstrapped, beside_labelled=self.candidates == "both")
        if self.demos != "fixed" and not given:
            # Prompts do not depend on the order of the trainset.
            findable = {index: trainset[index] for index in by_content(trainset)}
        slots = self._slots(program, examples, findable, attempts, student=student)
        if not (slots.slots or attempts):
            cure = "max_metric_calls=100" if self.max_metric_calls == 0 else "candidates='bootstrapped'"
            raise UserError(
                "there are no demos to choose from: the student has none, and no prompt would show the candidates. "
                f"Pass {cure}, so that right answers of the program make demos, or a list of demos with the fields of "
                "the signature"
            )
        _warn_of_demos(program, slots)
        original = slots.original
        if self.max_metric_calls == 0:
            assert isinstance(slots, RetrievalSlots)
            original = slots.without_calls
        others = list(given)
        if self.demos != "retrieved":
            others += examples.values()
        return DemoChoices(
            program=program,
            slots=slots,
            original=original,
            others=others,
            demo_examples=examples,
            findable=findable,
            student=student,
            teacher=_teacher_of(teacher),
            attempts=attempts,
        )

    @property
    def _given(self) -> Sequence[Any]:
        """The demos that the user passed as candidates."""
        return [] if isinstance(self.candidates, str) else self.candidates

    def _make_demos(self, setup: CompileSetup, evaluator: Callable[..., ProgramEvaluator]) -> CompileSetup:
        """Make the demos that a teacher makes, and lay out the search among them."""
        if self.calibrate is not False or self.signal == "logprobs":
            self.work(setup)  # It raises if that is impossible, before any call.
        names = [f"trainset[{number}]" for number in setup.demo_examples]
        teaching = evaluator(setup.slots, TeacherWork(setup), names=names, num_threads=1)
        attempts, ended_early = make_attempts(setup, teaching)
        slots = self._slots(
            setup.program,
            setup.demo_examples,
            setup.findable,
            attempts,
            student=setup.student,
            labelled=self.candidates != "bootstrapped",
        )
        if slots.space.num_distinct < 2:
            self._check_attempts(attempts, ended_early=ended_early)
        _warn_of_demos(setup.program, slots, beside=setup.slots)
        setup = self._with_slots(replace(setup, attempts=attempts), slots)
        if setup.plan.max_metric_calls is not None:
            teaching.budget.max_calls = setup.plan.max_metric_calls + len(attempts)
        return setup

    def _with_slots(self, setup: CompileSetup, slots: PoolSlots) -> CompileSetup:
        """Return a setup that chooses from other demos, with a plan for them."""
        setup = replace(setup, slots=slots, original=slots.original, plan=NOTHING_TO_DO)
        return self._with_plan(setup) if slots.space.num_distinct > 1 else setup

    def _check_attempts(self, attempts: Sequence[Attempt], *, ended_early: bool) -> None:
        """Raise if attempts that left nothing to choose from ended early, or all failed."""
        if ended_early:
            limits = {"max_seconds": self.max_seconds, "max_cost": self.max_cost}
            shares = [f"a quarter of {name}={limit:g}" for name, limit in limits.items() if limit is not None]
            raise RuntimeError(
                f"{' or '.join(shares) or 'max_metric_calls'} was over before bootstrapped demos gave anything to "
                "choose from: raise it; with log_dir, the next compile goes on from there"
            )
        if attempts and all(attempt.cell.outcome == FAILED for attempt in attempts):
            first = attempts[0].cell
            errors = [attempt.cell.error for attempt in attempts]
            cure = cure_of(errors, otherwise="mend the program, the metric or the examples")
            raise RuntimeError(
                f"there is nothing to choose from: all {len(attempts)} calls that were to make demos failed, the first "
                f"by {first.error} ({first.message}): {cure}"
            )

    def _slots(
        self,
        program: dspy.Module,
        examples: Mapping[int, dspy.Example],
        findable: Mapping[int, dspy.Example],
        attempts: Sequence[Attempt],
        *,
        labelled: bool = True,
        fixed_only: bool = False,
        student: dspy.Module | None = None,
    ) -> PoolSlots:
        """Return what can be chosen after these attempts; the examples themselves only if they are `labelled`.

        A student that finds its demos competes as it is.
        """
        every = pools_of(  # Fixed and found ones together: each demo is rendered once.
            program, labelled={**examples, **findable} if labelled else {}, attempts=attempts, given=self._given
        )
        only_findable = {f"trainset[{number}]" for number in findable.keys() - examples.keys()}
        pools = {}
        for name, demos in every.items():
            pools[name] = [demo for demo in demos if demo.origin not in only_findable]
        own = [] if student is None else [(OWN, student)]
        min_demos = self.min_demos
        max_demos = self.max_demos
        if fixed_only or (self.demos == "fixed" and not own):
            return PoolSlots(program, pools, min_demos=min_demos, max_demos=max_demos, max_tokens=self.max_demo_tokens)
        nearest: Mapping[str, NearestDemos] = {}
        found: Mapping[str, Pool] = {}
        if self.demos != "fixed":
            retrieved, tokens = self._retrieved(every, findable)
            if self.demos == "retrieved" and any(pools.values()) and not (any(retrieved.values()) or attempts):
                raise UserError(
                    "demos='retrieved' needs demos that can be found for an input, and there are none but the "
                    "student's own: pass examples that these do not show, with the fields of the signature and within "
                    "max_demo_tokens"
                )
            _, known = self._embedded.setdefault(id(self.embedder), (self.embedder, {}))
            nearest = variations(max_demos, min_demos, tokens)
            found = make_pools(program, retrieved, examples=findable, embedder=self.embedder, known=known)
        if self.demos == "retrieved":
            min_demos = 0
            max_demos = 0
        return RetrievalSlots(
            program,
            pools,
            nearest=nearest,
            found=found,
            programs=own,
            min_demos=min_demos,
            max_demos=max_demos,
            max_tokens=self.max_demo_tokens,
        )

    def _retrieved(
        self, pools: Mapping[str, Sequence[PooledDemo]], findable: Mapping[int, dspy.Example]
    ) -> tuple[dict[str, list[PooledDemo]], int | None]:
        """Return the demos of each predictor that can be found, and the tokens that each predictor may show."""
        places = {f"trainset[{number}]": place for place, number in enumerate(findable)}
        retrieved = {}
        for name, demos in pools.items():
            not_own = [demo for demo in demos if demo.origin != OWN]
            retrieved[name] = sorted(not_own, key=lambda demo: places.get(demo.origin, -1))
        if self.max_demo_tokens is None:
            return retrieved, None
        most = self.max_demo_tokens // max(1, sum(map(bool, retrieved.values())))
        for name, demos in retrieved.items():
            retrieved[name] = [demo for demo in demos if demo.tokens <= most]
        return retrieved, most

    def _without_retrieval(self, opened: OpenCompile, error: CalledBlindly) -> OpenCompile:
        """Return the compile with fixed demos alone, if these compete with found ones."""
        setup = opened.setup
        if self.demos != "auto" or setup.student is not None:
            raise error
        logger.warning("demos='auto' goes on with fixed demos alone: %s", error)
        labelled = self.candidates != "bootstrapped"
        slots = self._slots(setup.program, setup.demo_examples, {}, setup.attempts, labelled=labelled, fixed_only=True)
        setup = self._with_slots(replace(setup, findable={}), slots)
        work = self.work(setup)
        payer = opened.scorer.payer
        assert isinstance(payer, ProgramEvaluator)
        bootstrapped = [attempt.key for attempt in setup.attempts]
        scorer = CellScorer(payer.with_slots(slots, work), bootstrapped=bootstrapped, influence=work.influence)
        return replace(opened, setup=setup, work=work, scorer=scorer)

    def _finish(
        self, setup: CompileSetup, run: CompileRun, outcome: Outcome, program_in: Callable[..., dspy.Module]
    ) -> FinishedProgram:
        """Make what the compile returns, and keep how to make the best program of each number of demos."""
        slots = setup.slots
        assert isinstance(slots, PoolSlots)
        expected = expected_scores(slots, run, outcome)
        best = best_by_number(setup, slots, expected, outcome)
        self._found = {number: partial(program_in, each.candidate, each.offsets) for number, each in best.items()}
        retrieval = None
        if isinstance(slots, RetrievalSlots):
            retrieval = compare_ways(setup, slots, expected, outcome.decision.ordering)
        return FinishedProgram(
            program_in(outcome.decision.ordering, outcome.decision.offsets),
            best_by_number=[
                score.alternative(f"{number} demos", slots.shown(score.candidate)) for number, score in best.items()
            ],
            retrieval=retrieval,
        )

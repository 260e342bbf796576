"""PLFewShot: the DSPy optimizer that chooses which demos a program shows, how many, and in what order."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import dspy
from pydantic import Field

from plr_dspy.compiling.choice import Outcome
from plr_dspy.compiling.paper import NOTHING_TO_DO
from plr_dspy.compiling.plan import Plan, ProblemSize, make_plan
from plr_dspy.compiling.rounds import MinExamples
from plr_dspy.compiling.run import CompileRun
from plr_dspy.errors import UserError
from plr_dspy.optimizer.demos import (
    TeacherWork,
    check_any_demo,
    demo_examples,
    make_attempts,
    plan_attempts,
    pools_of,
    why_none,
)
from plr_dspy.optimizer.fewshot_result import finish
from plr_dspy.optimizer.front import Front
from plr_dspy.optimizer.learning import LearningOptimizer
from plr_dspy.optimizer.look_sizes import LookSizes
from plr_dspy.optimizer.opening import OpenCompile
from plr_dspy.optimizer.proposals import (
    ProposalWork,
    make_proposals,
    most_tokens,
    planned_proposals,
    proposed_instructions,
)
from plr_dspy.optimizer.report_builder import FinishedProgram
from plr_dspy.optimizer.revisions import propose_from_failures
from plr_dspy.optimizer.setup import Attempt, CompileSetup, DemoChoices, Proposal, Teacher, checked_teacher
from plr_dspy.programs.calls import ProgramEvaluator
from plr_dspy.programs.checks import Count, Number, WholeNumber, arguments
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.hidden_demos import warn_if_none_is_shown
from plr_dspy.programs.instructions import (
    OWN,
    Instruction,
    InstructionChoices,
    check_usable,
    given_instructions,
    stand_in_instructions,
    usable_instructions,
)
from plr_dspy.programs.prefixes import NEW_SHARE, NEW_SHARE_WITH_LOGPROBS
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.programs.splits import Examples, by_content
from plr_dspy.report.rules import DEFAULT_MAX_DEMOS
from plr_dspy.retrieval.slots import (
    NOT_COMPARABLE,
    RetrievalSlots,
    fixed_and_retrieved,
    make_pools,
    variations,
)
from plr_dspy.scoring.run_log import FAILED
from plr_dspy.search.search import Search
from plr_dspy.search.space import Ordering
from plr_dspy.statistics.arrays import Array

logger = logging.getLogger(__name__)

NUM_INSTRUCTIONS = 6  # default number of instructions to propose for each predictor

Demo: TypeAlias = dspy.Example | dict[str, Any]
Texts: TypeAlias = Annotated[list[str], Field(min_length=1)]
Candidates: TypeAlias = Annotated[
    Literal["both", "labeled", "bootstrapped"] | Annotated[list[Demo], Field(min_length=1)],
    Field(description="'both', 'labeled', 'bootstrapped', or a non-empty list of demos"),
]
Instructions: TypeAlias = Annotated[
    Literal["propose"] | Texts | Annotated[dict[str, Texts], Field(min_length=1)] | None,
    Field(
        description="'propose', a non-empty list of strings, or a dict from predictor names to such lists"
    ),
]
Embedder: TypeAlias = Annotated[
    Callable[..., Any] | None,
    Field(description="a dspy.Embedder or None; for example, dspy.Embedder('openai/...')"),
]
PromptModel: TypeAlias = Annotated[
    dspy.BaseLM | None, Field(description="a dspy.LM or None; for example, dspy.LM('openai/gpt-4o-mini')")
]


@arguments
class PLFewShot(LearningOptimizer):
    """An optimizer that chooses which demos a program shows, how many, and in what order.

    By default, a quarter of the trainset (at most 50 examples) becomes demos; the rest is for
    scoring. The unchanged student is also a candidate. Another candidate replaces the student only
    if a gain is at least three times as likely as a loss. For the user's own `programs`, 1.5 times is
    enough. `min_probability` replaces both rules.

    Args:
        metric: As in `PLReorder`. While demos are bootstrapped, a metric with a third
            parameter gets DSPy's ``trace``.
        demos: "fixed" shows the same demos for every input. "retrieved" shows the demos that are
            most similar to each input, by default from the whole trainset. The search chooses the
            best of up to five retrieval settings. If retrieved demos are chosen, the returned
            program and its file contain all demos that it can retrieve. "auto" compares fixed and
            retrieved demos. Only "retrieved" works without program calls (``max_metric_calls=0``).
        embedder: A ``dspy.Embedder`` to find similar inputs. None compares the inputs' words
            (TF-IDF).
        max_demos, min_demos: Maximum and minimum number of demos per predictor. If fewer than
            `min_demos` demos are available, prompts show all of them.
        candidates: Source of the demos. "labeled" uses examples from the trainset, and
            "bootstrapped" uses a teacher's correct answers to examples from the trainset.
            "both" uses both sources, but calls no teacher if all outputs are labels that the
            examples contain. A list of demos replaces the trainset as the source. The
            student's own demos are always included.
        max_demo_tokens: Maximum total number of tokens in all demos, counted with GPT-4o's
            tokenizer. Only the unchanged student and `programs` may exceed this maximum.
        max_bootstrapped: Maximum number of examples for which the teacher's answers become
            demos. The teacher runs on at most twice as many examples.
        metric_threshold: Minimum score for an answer to become a demo; None accepts any score
            above 0.
        instructions: Instructions to choose from, besides the student's own: a list of strings or,
            for several predictors, a dict from predictor names to lists. With "propose", a prompt
            model writes instructions with DSPy's `GroundedProposer`, from examples that become
            demos. Halfway through the search, GEPA's `InstructionProposer` writes one more for each
            predictor from failures and the metric's feedback. Instructions of `programs` are
            always included. Retrieved demos are combined only with the student's own instruction.
        prompt_model: ``dspy.LM`` that proposes instructions. None uses ``dspy.settings.lm``
            or, if no model is configured there, the student's model.
        num_instructions: Number of instructions to propose for each predictor before the
            search.
        auto: Budget in program calls: "light" (1,000), "medium" (3,000) or "heavy" (10,000).
            None requires `max_metric_calls`.
        all others: As in `PLReorder`. Bootstrapping may use a quarter of `max_cost` and
            `max_seconds`. Bootstrapping and proposals before the search may together use 40%.

    Attributes:
        report: As in `PLReorder`. Demo indices refer to the pools in ``report.slots``, which
            also lists each demo's origin. ``report.front`` lists the scores, tokens and costs
            of the best candidates. ``report.instructions`` lists the instructions and their
            expected scores.
        best_program: As in `PLReorder`.

    Raises:
        TypeError, ValueError: If an argument is invalid. The message says what to pass.
    """

    name = "PLFewShot"
    num_demos: ClassVar[None] = None  # type: ignore[misc]

    auto: Literal["light", "medium", "heavy"] | None = "light"  # type: ignore[misc]
    demos: Literal["auto", "fixed", "retrieved"] = "fixed"
    embedder: Embedder = None
    max_metric_calls: Annotated[WholeNumber, Field(ge=0)] | None = None
    max_demos: Count = DEFAULT_MAX_DEMOS
    min_demos: Annotated[WholeNumber, Field(ge=0)] = 0
    candidates: Candidates = "both"
    max_demo_tokens: Count | None = None
    max_bootstrapped: Count = 8
    metric_threshold: Number | None = None
    instructions: Instructions = None
    prompt_model: PromptModel = None
    num_instructions: Count = NUM_INSTRUCTIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._front: Front | None = None
        self._vectors: dict[Any, dict[str, Array]] = {}  # embeddings of texts, keyed by embedder

    def check_together(self) -> None:
        """Raise an error if arguments conflict.

        Raises:
            ValueError: If two arguments cannot be combined.
        """
        super().check_together()
        if self.min_demos > self.max_demos:
            raise UserError(
                f"min_demos must be at most max_demos={self.max_demos}; got {self.min_demos}: reduce min_demos, or "
                "increase max_demos"
            )
        if self.max_metric_calls == 0:
            self._check_without_calls()
        if self.instructions != "propose":
            for name, default in (("prompt_model", None), ("num_instructions", NUM_INSTRUCTIONS)):
                if getattr(self, name) != default:
                    raise UserError(
                        f"{name} needs instructions='propose'; got {self.instructions!r}: pass "
                        f"instructions='propose', or omit {name}"
                    )
        if self.demos == "fixed" and self.embedder is not None:
            raise UserError(
                "embedder needs retrieved demos; got demos='fixed': pass demos='auto' or demos='retrieved', or omit "
                "embedder"
            )

    def _check_without_calls(self) -> None:
        """Raise a ValueError if an argument needs program calls, but `max_metric_calls` is 0."""
        needing_calls = {
            "demos": (self.demos != "retrieved", "pass demos='retrieved'"),
            "instructions": (self.instructions is not None, "omit instructions"),
            "candidates": (self.candidates == "bootstrapped", "pass candidates='labeled'"),
            "calibrate": (self.calibrate is not False, "omit calibrate"),
        }
        for name, (needs_calls, fix) in needing_calls.items():
            if needs_calls:
                raise UserError(
                    f"{name}={getattr(self, name)!r} needs program calls, but max_metric_calls is 0: {fix}, "
                    "or increase max_metric_calls"
                )

    def plan(self, size: ProblemSize, *, signal: str = "score") -> Plan:
        return make_plan(
            self.auto, size, max_metric_calls=self.max_metric_calls, signal=signal, searched="demos"
        )

    def _min_examples(self, open_compile: OpenCompile) -> MinExamples | None:
        plan = open_compile.setup.plan
        # No minimum is needed if every arrangement is scored on all examples.
        if plan.most_searched is not None:
            return None
        max_share = NEW_SHARE if open_compile.responses is None else NEW_SHARE_WITH_LOGPROBS
        try:
            return LookSizes(open_compile.setup, open_compile.prefixes, max_share=max_share)
        except Exception:  # If the adapter or litellm cannot count tokens, set no minimum.
            return None

    def program_with(self, num_demos: int | None = None, *, within: float | None = None) -> dspy.Module:
        """Build another program from the results of the last call to `compile`.

        A log message names the entry of ``report.front`` that is built. The entry may be the
        student (its `kind` is "original") or the returned program. Scores are estimates, some of
        them from few examples, so evaluate the program on new examples.

        Args:
            num_demos: Total number of fixed demos in all predictors. The entry for this number in
                ``report.best_by_number`` is built. If the returned program has this number of fixed
                demos, it is the entry. Otherwise, the entry is the prompt with the highest expected
                score, possibly the student's.
            within: Maximum loss of score relative to the returned program, in the metric's units.
                An entry of ``report.front`` qualifies if its expected loss is within this maximum
                and a larger loss is improbable. "Improbable" means a probability of at most .25, or
                of at most ``1 - min_probability`` if `min_probability` is set. The cheapest entry
                that qualifies is built. The returned program always qualifies.

        Raises:
            ValueError: If not exactly one argument is passed, if `within` is invalid, if no
                scored prompt has `num_demos` fixed demos, or if `compile` was not called, scored
                nothing or raised an error.
        """
        if (num_demos is None) == (within is None):
            raise UserError(
                f"program_with needs either num_demos or within; got {num_demos=}, {within=}: pass exactly one of them"
            )
        if self.report is None or self._front is None:
            raise UserError(
                "program_with needs a compile run that scored prompts and raised no error, but there is none: "
                "call compile first, with max_metric_calls above 0"
            )
        if within is not None:
            return self._front.build(self._front.as_good(within)[0])
        return self._front.build(self._front.with_num_demos(num_demos, self.report))

    def _choices(
        self,
        program: dspy.Module,
        trainset: Examples,
        valset: Examples,
        rng: random.Random,
        teacher: Teacher,
    ) -> DemoChoices:
        """Return the demos to choose from, as if all planned attempts to bootstrap demos had succeeded.

        Later, the results of the attempts replace the planned demos.
        """
        self._check_names_of_programs()
        user_demos = self._user_demos
        examples = {} if user_demos else demo_examples(trainset, valset, rng)
        demos = [*user_demos, *examples.values()]
        check_any_demo(program, self._rivals, demos, trainset=trainset, valset=valset)
        if self.candidates != "bootstrapped":
            warn_if_none_is_shown(program, demos)
        attempts = self._attempts(program, examples)
        retrievable: Mapping[int, dspy.Example] = {}
        if self.demos != "fixed" and not user_demos:
            # Prompts must not depend on the trainset's order, so sort the examples by content.
            retrievable = {index: trainset[index] for index in by_content(trainset)}
        if self.instructions is not None and self.demos == "retrieved":
            logger.warning(
                "retrieved demos are shown only with the student's own instruction, so other instructions are tried "
                "without demos: pass demos='fixed' or demos='auto' to try them with demos"
            )
        instructions = self._instructions(program)
        slots = self._slots(program, examples, retrievable, attempts, instructions.by_predictor, warns=True)
        if not (slots.slots or slots.alternatives or attempts):
            raise UserError(
                f"there are no demos to choose from, because the {self.student_name} has no demos, and none of the "
                "candidates can be shown in its prompts: pass examples with values for all of the signature's fields"
            )
        has_own_demos = any(predictor.demos for predictor in program.predictors())
        retrieves = isinstance(slots, RetrievalSlots) and bool(attempts or slots.whole_programs)
        if self.demos == "retrieved" and has_own_demos and not retrieves:
            raise UserError(
                "demos='retrieved' needs examples to retrieve; got none: pass examples that have the signature's "
                "fields, fit within max_demo_tokens, and are not among the student's demos"
            )
        original = slots.original
        if self.max_metric_calls == 0:
            assert isinstance(slots, RetrievalSlots)
            original = slots.without_calls
        others = list(user_demos)
        if self.demos != "retrieved" or self.instructions == "propose":
            # These examples must not be used for scoring, because they may become demos or be
            # shown to the prompt model.
            others += examples.values()
        proposals: Sequence[Proposal] = ()
        if self.instructions == "propose":
            proposals = planned_proposals(program, self.num_instructions)
        return DemoChoices(
            program=program,
            slots=slots,
            original=original,
            others=others,
            demo_examples=examples,
            retrievable=retrievable,
            teacher=checked_teacher(teacher),
            dropped_instructions=instructions.dropped,
            prompt_model=self._prompt_model(program),
            proposals=proposals,
            attempts=attempts,
        )

    def _attempts(self, program: dspy.Module, examples: Mapping[int, dspy.Example]) -> list[Attempt]:
        """Return the planned attempts to bootstrap demos."""
        if self.max_metric_calls == 0 or self.candidates not in ("both", "bootstrapped"):
            return []
        with_labeled = self.candidates == "both"
        return plan_attempts(program, examples, self.max_bootstrapped, with_labeled=with_labeled)

    def _check_names_of_programs(self) -> None:
        """Raise a ValueError if a program has the name that reports use for the student's own demos."""
        if any(rival.name == OWN for rival in self._rivals):
            raise UserError(
                f"programs must not have the name {OWN!r}, because reports use it for the origin of the student's own "
                "demos and instructions: pass this program under another name, such as 'program 1'"
            )

    def _instructions(
        self, program: dspy.Module, max_tokens: Mapping[str, float] = MappingProxyType({})
    ) -> InstructionChoices:
        """Return the instructions of the student, the user's programs and the argument `instructions`.

        For `max_tokens`, see `usable_instructions`.
        """
        if self.instructions == "propose":
            return stand_in_instructions(
                program, self.num_instructions, self._rivals, max_tokens=max_tokens
            )
        given: Mapping[str, Sequence[Instruction]] = {}
        if self.instructions is not None:
            given = given_instructions(program, self.instructions)
        choices = usable_instructions(program, given, rivals=self._rivals, max_tokens=max_tokens)
        check_usable(given, choices)
        return choices

    def _without_unusable(self, setup: CompileSetup) -> CompileSetup:
        """Return the setup without instructions that are too long for the model's context window."""
        if not setup.slots.alternatives:
            return setup
        choices = self._instructions(setup.program, most_tokens(setup))
        if choices.by_predictor == setup.slots.alternatives:
            return setup
        slots = self._slots(
            setup.program, setup.demo_examples, setup.retrievable, setup.attempts, choices.by_predictor
        )
        return replace(setup, slots=slots, original=slots.original, dropped_instructions=choices.dropped)

    def _prompt_model(self, program: dspy.Module) -> dspy.BaseLM | None:
        """Return the model that proposes instructions, or None if no instructions are proposed."""
        if self.instructions != "propose":
            return None
        return self.prompt_model or dspy.settings.lm or language_models(program)[0]

    @property
    def _user_demos(self) -> Sequence[Any]:
        """The demos that the user passed as `candidates`, or an empty list if `candidates` names a source."""
        return [] if isinstance(self.candidates, str) else self.candidates

    def _slots(
        self,
        program: dspy.Module,
        examples: Mapping[int, dspy.Example],
        retrievable: Mapping[int, dspy.Example],
        attempts: Sequence[Attempt],
        instructions: Mapping[str, Sequence[Instruction]],
        *,
        warns: bool = False,
    ) -> PoolSlots:
        """Return the search space: instructions, and slots for demos, including the demos of `attempts`."""
        labeled = {} if self.candidates == "bootstrapped" else {**examples, **retrievable}
        # Put fixed and retrieved demos in one pool, so that each demo is rendered once.
        pools = pools_of(
            program, labeled=labeled, attempts=attempts, user_demos=self._user_demos, rivals=self._rivals
        )
        allows_fixed_demos = self.demos != "retrieved"
        limits: dict[str, Any] = {
            "min_demos": self.min_demos if allows_fixed_demos else 0,
            "max_demos": self.max_demos if allows_fixed_demos else 0,
            "max_tokens": self.max_demo_tokens,
            "rivals": self._rivals,
            "alternatives": instructions,
        }
        if self.demos == "fixed":
            return PoolSlots(program, pools, **limits)
        max_tokens_of_predictor = None
        if self.max_demo_tokens is not None:
            max_tokens_of_predictor = self.max_demo_tokens // max(1, len(pools))
        fixed, retrieved = fixed_and_retrieved(
            pools, examples=examples, retrievable=retrievable, max_tokens=max_tokens_of_predictor
        )
        known = self._vectors.setdefault(self.embedder, {})
        retrieval_pools = make_pools(
            program, retrieved, examples=retrievable, embedder=self.embedder, known=known, warns=warns
        )
        if self.demos == "retrieved" and any(retrieved.values()) and not retrieval_pools:
            raise UserError(
                f"demos must not be 'retrieved' if the inputs {NOT_COMPARABLE}: pass demos='fixed'. If the text only "
                "lacks words, you can pass an embedder instead"
            )
        nearest = variations(self.max_demos, self.min_demos, max_tokens_of_predictor)
        return RetrievalSlots(program, fixed, nearest=nearest, retrieval_pools=retrieval_pools, **limits)

    def _make_demos(self, setup: CompileSetup, make_payer: Callable[..., ProgramEvaluator]) -> CompileSetup:
        """Bootstrap demos, propose instructions, and return a setup whose search space includes both."""
        if self._needing_logprobs:
            # Raise an error before any call if the program or the metric rules out log-probabilities.
            self.work(setup)
        if setup.attempts:
            names = [f"trainset[{number}]" for number in setup.demo_examples]
            teacher = make_payer(setup.slots, TeacherWork(setup), names=names, num_threads=1)
            setup = replace(setup, attempts=make_attempts(setup, teacher))
            setup = self._replanned(setup, setup.slots.alternatives, teacher)
            if setup.slots.space.num_distinct < 2 and all(
                attempt.record.outcome == FAILED for attempt in setup.attempts
            ):
                raise RuntimeError(f"there are no demos to choose from{why_none(setup.attempts)}")
        if setup.proposals:
            work = ProposalWork(setup)
            names = [task.name for task in setup.proposals]
            proposer = make_payer(setup.slots, work, names=names, num_threads=1)
            proposals = make_proposals(setup, work, proposer)
            choices = proposed_instructions(setup, proposals)
            setup = replace(setup, proposals=proposals, dropped_instructions=choices.dropped)
            setup = self._replanned(setup, choices.by_predictor, proposer)
        return setup

    def _replanned(
        self,
        setup: CompileSetup,
        instructions: Mapping[str, Sequence[Instruction]],
        payer: ProgramEvaluator,
    ) -> CompileSetup:
        """Return the setup with a new plan, and with the bootstrapped demos and `instructions` in the search space.

        Also set the call limit of the payer's budget to match this plan.
        """
        slots = self._slots(
            setup.program, setup.demo_examples, setup.retrievable, setup.attempts, instructions
        )
        setup = replace(setup, slots=slots, original=slots.original, plan=NOTHING_TO_DO)
        if slots.space.num_distinct > 1:
            setup = self._with_plan(setup)
        if setup.plan.max_metric_calls is not None:
            calls_before = len(setup.attempts) + len(setup.proposals)
            payer.budget.max_calls = setup.plan.max_metric_calls + calls_before
        return setup

    def _widening(self, open_compile: OpenCompile) -> Callable[..., Search | None] | None:
        if open_compile.setup.proposals and open_compile.setup.slots.alternatives:
            return partial(self._widened, open_compile)
        return None

    def _widened(self, open_compile: OpenCompile, failures: Mapping[int, Ordering]) -> Search | None:
        """Return a search that includes instructions proposed from failures, or None if none were added."""
        known = open_compile.setup.slots
        open_compile.setup = propose_from_failures(open_compile, failures)
        slots = open_compile.setup.slots
        if slots.space.sizes == known.space.sizes:
            return None
        open_compile.payer.slots = slots
        return self.search(open_compile.setup, open_compile.responses)

    def _finish(
        self,
        setup: CompileSetup,
        run: CompileRun,
        outcome: Outcome,
        build_program: Callable[..., dspy.Module],
    ) -> FinishedProgram:
        """Return the program that `compile` returns, with entries for the report.

        Also keep the best candidates for `program_with`.
        """
        finished, self._front = finish(
            setup, run, outcome, build_program, min_probability=self.min_probability
        )
        return finished

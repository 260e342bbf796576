"""The report on a compile run, built from the run's calls and outcome."""

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dspy

from plr_dspy._version import __version__
from plr_dspy.compiling.choice import Decision, Outcome, Result, over_calibrated
from plr_dspy.compiling.run import CompileRun
from plr_dspy.dspy_compat import format_field_value
from plr_dspy.optimizer.expected_scores import num_unread
from plr_dspy.optimizer.opening import OpenCompile
from plr_dspy.optimizer.prompt_sizes import prompt_tokens
from plr_dspy.optimizer.proposals import proposal_report
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.optimizer.yardsticks import yardsticks
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.media import replaced_in
from plr_dspy.programs.slots import PoolSlots
from plr_dspy.report.formats import shorten
from plr_dspy.report.prompts import InstructionReport, RetrievalReport, SlotReport
from plr_dspy.report.report import Report
from plr_dspy.report.schema import (
    Alternative,
    Candidate,
    ErrorCount,
    FrontEntry,
    ProgramComparison,
    ProgramState,
)
from plr_dspy.report.stop import StopReason
from plr_dspy.runtime import Redactor
from plr_dspy.scoring.budget import cost_of
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.run_log import error_counts
from plr_dspy.search.space import Ordering, WholeProgram

MAX_CHARACTERS = 500  # maximum number of characters shown from each field of a demo


@dataclass(frozen=True)
class FinishedProgram:
    """The program that a compile run returns, with some of the report's entries."""

    program: dspy.Module
    programs: list[Alternative] = field(default_factory=list)
    front: list[FrontEntry] = field(default_factory=list)
    instructions: list[InstructionReport] = field(default_factory=list)
    retrieval: RetrievalReport | None = None


def build_report(
    open_compile: OpenCompile, run: CompileRun, outcome: Outcome, finished: FinishedProgram
) -> Report:
    """Build the report on a compile run. After an interrupt, omit entries that take seconds to compute.

    Args:
        open_compile: The resources of the run, including its setup.
        run: The run, including all its scores.
        outcome: The outcome of the search and the final comparison.
        finished: The returned program, with entries for the report.
    """
    setup = open_compile.setup
    evaluator = run.evaluator
    decision = outcome.decision
    tokens = _tokens_by_model(evaluator)
    original = setup.original
    if isinstance(setup.slots, PoolSlots):
        # If max_metric_calls is 0, `setup.original` retrieves demos, so report on the student's own
        # prompt instead.
        original = setup.slots.original
    return Report(
        original=_program_state(setup, original, evaluator),
        returned=_program_state(
            setup, decision.candidate, evaluator, calibrated=decision.revision is not None
        ),
        slots=_slot_reports(setup, outcome, original),
        comparison=decision.comparison,
        over_best_own=_over_best_user_program(setup, decision),
        candidates=[_candidate(setup, decision, result) for result in decision.results],
        evidence=decision.evidence,
        signal=open_compile.work.signal,
        calibration=decision.effect,
        history=outcome.history,
        program_calls=outcome.program_calls,
        tokens=tokens,
        cost=cost_of(tokens),
        seconds=time.monotonic() - setup.started,
        errors=[
            *_errors_before_search(setup),
            *_errors_of_scored_calls(setup, evaluator, open_compile.names),
        ],
        stopped=str(outcome.stop),
        stop_reason=outcome.stop.reason,
        settings=setup.settings(),
        plr_dspy_version=__version__,
        dspy_version=dspy.__version__,
        front=finished.front,
        programs=finished.programs,
        instructions=finished.instructions,
        proposals=proposal_report(setup),
        retrieval=finished.retrieval,
        **_slow_entries(open_compile, run, outcome),
    )


def _slow_entries(open_compile: OpenCompile, run: CompileRun, outcome: Outcome) -> dict[str, Any]:
    """Return the entries that take seconds to compute. After an interrupt, return an empty dict."""
    if outcome.stop.reason is StopReason.INTERRUPTED:
        return {}
    entries = yardsticks(open_compile.setup, run, outcome.decision)
    # Counting tokens may import litellm, and this import takes seconds.
    entries["new_prompt_tokens"] = _new_prompt_tokens(open_compile)
    return entries


def _tokens_by_model(evaluator: Evaluator) -> dict[str, Any]:
    """Return the token counts of the run's calls, keyed by model and then by kind of token."""
    tokens: dict[str, Any] = defaultdict(Counter)
    for tokens_of_call in evaluator.log.tokens:
        for model, counts in tokens_of_call.items():
            tokens[model].update(counts)
    return tokens


def _errors_of_scored_calls(
    setup: CompileSetup, evaluator: Evaluator, names: Sequence[str]
) -> list[ErrorCount]:
    """Count the exceptions in calls of the search and the final comparison, by type and outcome.

    `_errors_before_search` counts bootstrapping attempts and proposals, so omit them here.
    """
    others = {attempt.key[0] for attempt in setup.attempts}
    others |= {proposal.prompt for proposal in setup.proposals}
    scored = []
    for key, record in evaluator.log.records.items():
        if key not in evaluator.unscored and key[0] not in others:
            scored.append((key, record))
    return error_counts(scored, names)


def _errors_before_search(setup: CompileSetup) -> list[ErrorCount]:
    """Count the failed bootstrapping attempts and proposals by type of exception."""
    calls = [(f"trainset[{attempt.example}]", "gave no demo", attempt.record) for attempt in setup.attempts]
    calls += [(proposal.name, "gave no instruction", proposal.record) for proposal in setup.proposals]
    names = [name for name, _, _ in calls]
    records = [
        (("", number), replace(record, outcome=outcome))
        for number, (_, outcome, record) in enumerate(calls)
    ]
    return error_counts(records, names)


def _new_prompt_tokens(open_compile: OpenCompile) -> int | None:
    """Estimate the number of prompt tokens that were not in a server's prefix cache.

    Return None if this number is unknown, for example because prompts cannot be built.
    """
    try:
        return open_compile.prefixes.num_new(open_compile.evaluator.tokens_in_order())
    except Exception:  # If the adapter or litellm fails, the rest of the report is still useful.
        return None


def _over_best_user_program(setup: CompileSetup, decision: Decision) -> ProgramComparison | None:
    """Return the comparison of the result with the best of the user's programs, or None if none was made."""
    comparison = decision.over_best_user_program
    if comparison is None or decision.best_user_program is None:
        return None
    return ProgramComparison(name=_name(setup, decision.best_user_program), **dict(comparison))


def _candidate(setup: CompileSetup, decision: Decision, result: Result) -> Candidate:
    """Return the report's entry on a candidate of the final comparison."""
    return Candidate(
        name=_name(setup, result.candidate),
        ordering=setup.slots.shown(result.candidate),
        instructions=setup.slots.instructions(result.candidate),
        score=result.score,
        expected_gain=result.gain.expected,
        probability=result.gain.probability,
        probability_worse=result.gain.worse,
        **over_calibrated(decision.fitted, decision.results[0].candidate, result),
    )


def _program_state(
    setup: CompileSetup,
    ordering: Ordering | WholeProgram,
    evaluator: Evaluator,
    *,
    calibrated: bool = False,
) -> ProgramState:
    """Return the report's entry on a program: its name, and its numbers of demos, tokens and calls."""
    slots = setup.slots
    records = evaluator.records_of(ordering).values()
    demo_tokens = None
    tokens_without_inputs = None
    if isinstance(slots, PoolSlots):
        demo_tokens = slots.tokens(ordering)
        tokens_without_inputs = prompt_tokens(slots, ordering, slots.build(ordering))
    return ProgramState(
        name=_name(setup, ordering),
        num_demos=slots.num_demos(ordering),
        demo_tokens=demo_tokens,
        prompt_tokens=tokens_without_inputs,
        num_calls=len(records),
        num_failed=sum(bool(record.error) for record in records),
        num_unread=num_unread(evaluator, ordering, calibrated=calibrated),
        num_truncated=sum(record.is_truncated for record in records),
    )


def _name(setup: CompileSetup, candidate: Ordering | WholeProgram) -> str:
    """Return the candidate's name if it is one of the user's programs, else an empty string."""
    rival = setup.slots.rivals.get(candidate)
    return "" if rival is None else rival.name


def _slot_reports(
    setup: CompileSetup, outcome: Outcome, original: Ordering | WholeProgram
) -> list[SlotReport]:
    """Return a report entry for each predictor whose demos can be ordered or chosen."""
    ordering = setup.slots.shown(outcome.decision.candidate)
    original_ordering = setup.slots.shown(original)
    distributions = iter(outcome.distributions)
    predictors = dict(setup.program.named_predictors())
    redact = Redactor([dspy.settings.lm, *language_models(setup.program)])
    reports = []
    for slot in setup.slots.slots:
        predictor = predictors[slot.predictor]
        report = SlotReport(
            predictor=slot.predictor,
            ordering=ordering[slot.predictor],
            blocks=[list(block) for block in slot.blocks],
            distributions=[next(distributions).state_dict() for _ in slot.blocks],
            demos=[_demo_texts(predictor, demo, redact) for demo in slot.demos],
            origins=[pooled.origin for pooled in slot.pool],
            original=original_ordering[slot.predictor],
        )
        reports.append(report)
    return reports


def _demo_texts(predictor: dspy.Predict, demo: Any, redact: Redactor) -> dict[str, str]:
    """Return the texts of a demo's fields, keyed by field name.

    The texts are formatted as in prompts, but are shortened and contain no secrets or media.
    """
    texts = {}
    for name, info in predictor.signature.fields.items():
        if name in demo:
            text = replaced_in(format_field_value(info, demo[name]), lambda data: "[data]")
            texts[name] = shorten(redact(text).encode(errors="replace").decode(), MAX_CHARACTERS)
    return texts

"""A report's warnings about unusable replies, prompts and proposals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from plr_dspy.report.schema import ProgramState, ReportData
from plr_dspy.report.stop import StopReason

TOO_LONG = "ContextWindowExceededError"  # type of the exception raised if a prompt is too long
MANY_UNREAD = 0.1  # minimum share of unusable replies or prompts for a warning
PROPOSED = "proposed["  # prefix of the origins of proposed instructions


def problems(report: ReportData, programs: Mapping[str, ProgramState]) -> Iterator[str]:
    """Yield a warning for each problem that affected many calls or all proposed instructions.

    `programs` contains the states of the programs to check, keyed by their names in warnings.
    """
    yield from _unread_replies(report, programs)
    yield from _truncated_replies(programs)
    yield from _long_prompts(report)
    yield from _unusable_proposals(report)


def _are_many(num_replies: int, state: ProgramState) -> bool:
    return num_replies > 0 and num_replies >= MANY_UNREAD * state.num_calls


def _unread_replies(report: ReportData, programs: Mapping[str, ProgramState]) -> Iterator[str]:
    """Warn if many replies could not be parsed."""
    fix = "try another adapter, or add demos"
    if report.stop_reason is StopReason.UNREADABLE:  # Prompts with demos may have failed, too.
        fix = "try another adapter, or a larger model"
    for name, state in programs.items():
        if _are_many(state.num_unread, state):
            percent = 100 * state.num_unread / state.num_calls
            yield (
                f"{state.num_unread} of {state.num_calls} replies of {name} could not be parsed ({percent:.0f}%) and "
                f"count as wrong: {fix}"
            )


def _truncated_replies(programs: Mapping[str, ProgramState]) -> Iterator[str]:
    """Warn if many replies were cut off at the maximum number of tokens."""
    for name, state in programs.items():
        if _are_many(state.num_truncated, state):
            percent = 100 * state.num_truncated / state.num_calls
            yield (
                f"{state.num_truncated} of {state.num_calls} replies of {name} were cut off at max_tokens "
                f"({percent:.0f}%): increase the language model's max_tokens"
            )


def _long_prompts(report: ReportData) -> Iterator[str]:
    """Warn if many prompts exceeded the model's context length."""
    number = sum(error.count for error in report.errors if error.type == TOO_LONG)
    if number and number >= MANY_UNREAD * report.program_calls["total"]:
        yield (
            f"{number} of {report.program_calls['total']} prompts exceeded the model's context length and count as "
            "wrong: use fewer demos, or increase the server's context length and compile again with the same log_dir "
            "and accept_changes=True"
        )


def _unusable_proposals(report: ReportData) -> Iterator[str]:
    """Warn if no proposed instruction could be used."""
    if report.proposals is None:
        return
    texts = [text for part in report.instructions for text in (*part.alternatives, *part.dropped)]
    reasons = dict.fromkeys(text.reason for text in texts if text.origin.startswith(PROPOSED))
    if "" not in reasons:
        yield (
            f"no proposed instruction could be used ({'; '.join(reasons) or 'none was proposed'}): try another "
            "prompt_model, or pass instructions as a list"
        )

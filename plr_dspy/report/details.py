"""The lines of `report.details()`, such as settings, demos, instructions and errors."""

from __future__ import annotations

from collections.abc import Iterator

from plr_dspy.report.claims import scores_of_finalists
from plr_dspy.report.formats import count, one_line, price, score_of, score_text, table, unread_note
from plr_dspy.report.prompts import InstructionReport, SlotReport
from plr_dspy.report.schema import Comparison, ReportData
from plr_dspy.report.text import name_of_student, summary

FIELD_WIDTH = 40  # maximum number of characters shown per field
BOOTSTRAPPED = "bootstrapped from"  # prefix of the origins of bootstrapped demos


def details(report: ReportData) -> Iterator[str]:
    """Yield the lines of `report.details()`: the summary, then the details."""
    yield from summary(report)
    yield from _settings(report)
    if report.comparison is not None:
        yield _compared(report, report.comparison)
    # The report does not contain the demos and instructions of the user's programs.
    if not report.returned.name:
        for slot in report.slots:
            yield from _demos(slot, retrieves=report.retrieves)
    if len(report.front) > 1:
        yield (
            "the best prompt for each combination of kind, number of demos and instruction, cheapest first (expected "
            "score, tokens of instructions and demos):"
        )
        rows = {}
        for entry in report.front:
            name = entry.name
            if entry.is_returned:
                name += " (best so far)" if report.is_unfinished else " (returned)"
            rows[name] = f"{score_of(entry)}, {price(entry)}{unread_note(entry.num_unread)}"
        yield from table(rows)
    for instruction in report.instructions:
        yield from _instructions(instruction, _choice(report, instruction))
    proposals = report.proposals
    if proposals is not None:
        yield f"{count(proposals.num_texts, 'instruction')} proposed by {proposals.model}"
    for model, tokens in report.tokens.items():
        counts = [f"{number:,} {kind.removesuffix('_tokens')}" for kind, number in tokens.items()]
        yield f"tokens of {model}, as the server counted them: {', '.join(counts)}"
    if report.new_prompt_tokens:
        yield (
            "prompt tokens of scoring calls that would not be cached if a cache held only the previous prompt: about "
            f"{report.new_prompt_tokens:,}"
        )
    for error in report.errors:
        calls = count(error.count, "call")
        yield f"{calls} {error.outcome}: {error.type}: {error.message} ({', '.join(error.examples)})"


def _settings(report: ReportData) -> Iterator[str]:
    """Describe the settings, the examples and the calls, and state what the search learned from."""
    settings = report.settings
    known = [f"model {model}" for model in settings.get("models", [])]
    known += [f"{name} {settings[name]}" for name in ("adapter", "metric", "seed") if name in settings]
    yield ", ".join(known)
    num_train = settings.get("num_train", 0)
    num_selection = settings.get("num_selection", 0)
    examples = f"examples: {num_train + num_selection}"
    if num_selection and report.program_calls["total"]:
        examples = f"examples: {num_train} to search, {num_selection} for the final comparison"
    if settings.get("num_repeated"):
        examples += f"; {settings['num_repeated']} duplicates ignored"
    yield examples
    calls = [f"{phase} {number:,}" for phase, number in report.program_calls.items() if number]
    if calls:
        yield f"calls: {', '.join(calls)}"
    signal = report.signal
    if signal is None or not report.program_calls["total"]:
        return
    if signal.used != "score":
        yield "the search learned from scores and label probabilities"
    elif signal.reason:
        yield f"the search learned from scores alone: {signal.reason}"


def _compared(report: ReportData, comparison: Comparison) -> str:
    """Describe the scores that were observed in the final comparison or in a race of programs."""
    title = "mean scores"
    if report.settings.get("num_selection"):  # A race of programs has no final comparison.
        title = "mean scores in the final comparison"
    if report.has_set_metric:
        title = "values of the metric, from all answers"
    title += f", on {count(comparison.num_examples, 'example')}"
    if report.original_stays:
        return f"{title}: {scores_of_finalists(report, comparison, name=name_of_student(report))}"
    gain = score_text(comparison.gain, *comparison.interval, sign="+")
    return (
        f"{title}: {comparison.original:.3f} -> "
        f"{comparison.chosen:.3f}, gain {gain} (interval corrected for the choice among "
        f"{comparison.num_candidates} programs)"
    )


def _demos(slot: SlotReport, *, retrieves: bool) -> Iterator[str]:
    """List the fixed demos in a predictor's prompts, in prompt order."""
    if not slot.ordering:
        if not retrieves:
            yield f"{slot.predictor}: shows none of {count(len(slot.demos), 'demo')}"
        return
    num_shown = f"{len(slot.ordering)} of {count(len(slot.demos), 'demo')}"
    num_bootstrapped = sum(origin.startswith(BOOTSTRAPPED) for origin in slot.origins)
    if num_bootstrapped:
        num_shown += f" ({num_bootstrapped} bootstrapped)"
    yield f"{slot.predictor}: {num_shown} in the order {slot.ordering}, with the last demo next to the question"
    for number in slot.ordering:
        origin = f" ({slot.origins[number]})" if slot.origins else ""
        fields = [f"{name}: {one_line(value, FIELD_WIDTH)}" for name, value in slot.demos[number].items()]
        yield f"  demo {number}{origin}: {' | '.join(fields)}"


def _choice(report: ReportData, instruction: InstructionReport) -> str:
    """Say which of a predictor's instructions was chosen, or which is the best so far."""
    scores = [alternative.score for alternative in instruction.alternatives]
    if report.returned.name or (report.is_unfinished and not any(score is not None for score in scores)):
        return "no instruction was chosen"
    if report.is_unfinished:
        return f"instruction {instruction.chosen} is the best so far"
    return f"instruction {instruction.chosen} was chosen"


def _instructions(report: InstructionReport, choice: str) -> Iterator[str]:
    """List a predictor's instructions, each with the score of the best prompt that uses it."""
    if report.alternatives:
        yield f"{report.predictor}: {choice}; expected score of the best prompt with each instruction:"
    for number, instruction in enumerate(report.alternatives):
        score = "not scored"
        if instruction.score is not None:
            score = score_text(instruction.score, *(instruction.interval or ()))
            score += f" on {count(instruction.num_examples, 'example')}"
        yield f"  instruction {number} ({instruction.origin}): {score}: {one_line(instruction.text)}"
    for unused in report.dropped:
        yield f"  not used ({unused.origin}): {unused.reason}: {one_line(unused.text)}"

"""Writes all that a report holds, except the rounds and most settings."""

from __future__ import annotations

from collections.abc import Iterator

from plr_dspy.report.schema import ReportData, SlotReport
from plr_dspy.report.text import (
    calibrated_shares,
    count,
    noun,
    original_name,
    prompt_count,
    score,
    score_range,
    shorten,
    summary,
)

FIELD_WIDTH = 40  # characters of a demo's field


def details(report: ReportData) -> Iterator[str]:
    """Yield the lines of the summary, and all others."""
    yield from summary(report)
    predictors = count(len(report.slots), "predictor")
    yield f"{predictors} with demos, {prompt_count(report.distinct_prompts)} distinct prompts"
    settings = report.settings
    names = [*settings.get("models", []), settings.get("adapter"), settings.get("metric")]
    yield f"{', '.join(str(name) for name in names if name)}, seed {settings.get('seed')}"
    yield from _calls(report)
    yield from _final_comparison(report)
    yield from _signal(report)
    yield from _calibration(report)
    yield from _answers_by_label(report)
    yield from _demos(report)
    yield from _numbers_of_demos(report)
    for model, tokens in report.tokens.items():
        yield f"tokens of {model}: {', '.join(f'{number:,} {kind}' for kind, number in tokens.items())}"
    for error in report.errors:
        calls = f"{count(error.count, 'call')} {error.outcome}"
        yield f"{calls}: {error.type}: {error.message} ({', '.join(error.examples)})"


def _calls(report: ReportData) -> Iterator[str]:
    calls = []
    for phase, number in report.program_calls.items():
        if number and phase not in ("total", "resumed"):
            calls.append(f"{phase} {number:,}")
    if not calls:
        return
    settings = report.settings
    num_train = settings.get("num_train")
    examples = f"examples: {num_train} to search, {settings.get('num_selection')} to compare at the end"
    if settings.get("num_repeated"):
        examples += f"; {settings['num_repeated']} more, given twice, count once"
    yield examples
    yield f"calls: {', '.join(calls)}"


def _final_comparison(report: ReportData) -> Iterator[str]:
    comparison = report.comparison
    if comparison is None or not comparison.gain:
        return
    scores = f"{score(comparison.original, comparison)} -> {score(comparison.chosen, comparison)}"
    gain = score_range((comparison.gain, *comparison.interval), comparison, "+")
    yield (
        f"final comparison alone: {scores} on {comparison.num_examples} examples, "
        f"gain {gain} for the best of {comparison.num_candidates} {noun(report)}s"
    )


def _signal(report: ReportData) -> Iterator[str]:
    # Before the first call nobody knows whether the endpoint gives log-probabilities.
    if report.signal is None or not report.history:
        return
    if report.signal.used != "score":
        yield "learnt from the probabilities of labels that came with the calls"
    elif report.signal.reason:
        yield f"learnt from scores alone: {report.signal.reason}"


def _calibration(report: ReportData) -> Iterator[str]:
    """State what calibration does to both programs."""
    effect = report.calibration
    if effect is None:
        return
    original = f"{effect.original:.2f} as it is, {effect.original_calibrated:.2f} calibrated"
    line = f"expected: {original_name(report)} {original}"
    if not report.original_stays:
        line += f"; the chosen {noun(report)} "
        if not effect.applied:
            line += f"{effect.chosen:.2f} as it is, "
        line += f"{effect.chosen_calibrated:.2f} calibrated"
    constant = report.constant
    if constant is not None:
        line += f"; {constant.name} {constant.score:.2f} (on {constant.num_examples} examples)"
    yield line
    if effect.shares:
        yield f"calibration is to these shares of labels: {calibrated_shares(report, effect)}"
    else:
        yield "calibration takes the likeliest label as it is, which scores more than with any shares"


def _answers_by_label(report: ReportData) -> Iterator[str]:
    """Count how often both programs answered each label, and how often they were right."""
    confusion = report.confusion
    if confusion is None:
        return
    tables = [confusion.original]
    if not report.original_stays:
        tables.append(confusion.returned)
    for number, label in enumerate(confusion.labels):
        rates = []
        for table in tables:
            num_answers = sum(row[number] for row in table)
            rates.append(f"{table[number][number]} found, by {num_answers} answers")
        yield f"{label!r}, {sum(confusion.original[number])} examples: {' -> '.join(rates)}"


def _demos(report: ReportData) -> Iterator[str]:
    """List the demos that the prompts show."""
    if report.retrieves and not any(slot.ordering for slot in report.slots):
        return
    for slot in report.slots:
        yield f"{slot.predictor}: {_order(slot)}"
        for number in slot.ordering:
            origin = ""
            if slot.origins:
                origin = f" ({slot.origins[number]})"
            fields = []
            for name, value in slot.demos[number].items():
                one_line = " ".join(value.split())
                fields.append(f"{name}: {shorten(one_line, FIELD_WIDTH)}")
            yield f"  demo {number}{origin}: {' | '.join(fields)}"


def _order(slot: SlotReport) -> str:
    if not slot.ordering:
        return f"shows none of {count(slot.num_demos, 'demo')}"
    order = f"demos in the order {slot.ordering}, the last next to the question"
    if slot.origins or not slot.original:
        return f"{len(slot.ordering)} of {slot.num_demos} {order}"
    return order


def _numbers_of_demos(report: ReportData) -> Iterator[str]:
    chosen = report.chosen_of_number
    for best in report.best_by_number:
        line = f"best of {count(best.num_demos, 'demo')}: score {best.score:.3f}"
        if best.interval is not None:
            low, high = best.interval
            line += f" [{low:.3f}, {high:.3f}] by {best.num_examples} examples"
        line += f", {best.tokens:,} tokens"
        if best is chosen:
            line += " (chosen)"
        yield line

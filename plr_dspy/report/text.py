"""What a compile did and found, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plr_dspy.report.schema import Comparison

if TYPE_CHECKING:
    from plr_dspy.report.report import Report

SURE = 0.9
"""Probability of being better on new examples from which on an order is called better."""

ENOUGH_MET = 20
"""Examples under two orders on which no score differed, that say there is nothing to find."""

ALL_COMPARED = 0.8
"""Share of all examples that both orders were scored on, from which on more calls would tell little."""

BUDGET = "budget"
"""What a search says that used all of its calls."""

PHASES = {
    "search": "search",
    "race": "race of its best orders",
    "final": "final comparison",
    "original": "original order there",
}
"""What program calls are spent on."""


def prompt_count(count: float) -> str:
    """A number of prompts: in full, or as a power of ten where nobody would read it."""
    return f"{count:,.0f}" if count < 1e12 else f"10^{math.log10(count):.0f}"


def score(value: float, comparison: Comparison, *, sign: bool = False) -> str:
    """A score, or with a sign a difference of two, with so many decimals that small scores can be told apart."""
    largest = max(abs(comparison.original), abs(comparison.chosen))
    decimals = 3 if largest >= 0.01 or not largest else 2 - math.floor(math.log10(largest))
    return f"{value:{'+' * sign}.{decimals}f}"


def is_scored_by_metric(report: Report) -> bool:
    """Whether orders were scored by the metric in the search, not by their label probabilities."""
    return bool(report.settings.get("scored_on", "train examples") == "train examples")


def overview(report: Report) -> str:
    """One line: the method, what there was to order, what it cost, what ended it."""
    resumed = report.program_calls.get("resumed", 0)
    earlier = f" ({resumed:,} of them before this part)" if resumed else ""
    return (
        f"{report.settings.get('method', 'PLReorder')}: {len(report.slots)} predictor(s) with demos, "
        f"{prompt_count(report.distinct_prompts)} distinct prompts, "
        f"{report.program_calls['total']:,} program calls{earlier}, {report.seconds:.0f} s; {report.stopped}"
    )


def result(report: Report) -> str:
    """Say in a few words what came of a compile: both scores, how sure that is, and what it cost."""
    calls = f"{report.program_calls['total']:,} calls"
    stays = f"the {original_name(report)} stays"
    if (c := report.comparison) is None:
        what = stays if original_stays(report) else "the order is not compared with the original one"
        return f"{what} ({report.stopped}), {calls}"
    if original_stays(report):
        return f"{stays}, {score(c.original, c)} on {c.num_examples} examples, {calls}"
    chance = "" if c.probability >= SURE else " (may be chance)"
    return (
        f"{score(c.original, c)} -> {score(c.chosen, c)} on {c.num_examples} examples, "
        f"better with probability {c.probability:.2f}{chance}, {calls}"
    )


def original_stays(report: Report) -> bool:
    """Whether a compile returned what the user had."""
    if report.candidates:
        return report.candidates[0].ordering == {slot.predictor: slot.ordering for slot in report.slots}
    return all(slot.ordering == sorted(slot.ordering) for slot in report.slots)


def calls_by_phase(report: Report) -> dict[str, int]:
    """Program calls by what they were spent on, those phases that made any."""
    return {what: calls for name, what in PHASES.items() if (calls := report.program_calls.get(name))}


def verdict(report: Report) -> list[str]:
    """What the compile says about the chosen and the original order, a line for each statement."""
    if (c := report.comparison) is not None:
        lines = [
            f"{original_name(report)} {score(c.original, c)}, chosen order {score(c.chosen, c)} "
            f"on {c.num_examples} examples",
        ]
        if c.gain:
            gain, low, high = (score(value, c, sign=True) for value in (c.gain, *c.interval))
            lines.append(
                f"gain {gain} there, {100 * c.confidence:.0f} % interval [{low}, {high}] "
                f"(for the best of {c.num_candidates} orders)"
            )
        return lines + _claim(report, c)
    if report.evidence is not None:
        return [*_advice(report), f"the {original_name(report)} stays"]
    if not is_scored_by_metric(report):
        return ["chosen by label probabilities; not compared with the original order"]
    if report.history:
        return [
            f"not compared with the original order; the best order is estimated to score "
            f"{report.history[-1].best_score_so_far:.3f} on train examples",
            "with log_dir, the same compile goes on from here",
        ]
    return []


def original_name(report: Report) -> str:
    """What a report calls that which the user had."""
    without = report.candidates and not any(report.candidates[0].ordering.values())
    return "student without demos" if without else "original order"


def summary(report: Report) -> str:
    """All of it, for a terminal."""
    lines = []
    if calls := calls_by_phase(report):
        lines.append("calls: " + ", ".join(f"{what} {count:,}" for what, count in calls.items()))
    lines += verdict(report)
    lines += [f"{slot.predictor}: demos in the order {slot.ordering}" for slot in report.slots]
    lines += [
        f"tokens of {model}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())
        for model, counts in report.tokens.items()
    ]
    lines += [
        f"{error.count} call(s) {error.outcome}: {error.type}: {error.message} ({', '.join(error.examples)})"
        for error in report.errors
    ]
    return "\n  ".join([overview(report), *lines])


def _claim(report: Report, comparison: Comparison) -> list[str]:
    """What is expected on new examples, how sure that is, and what would make it surer."""
    if not is_scored_by_metric(report):
        worse = ": on these it is worse than the original one" if comparison.gain < 0 else ""
        return [f"the order was chosen by its label probabilities, not by these examples{worse}"]
    if original_stays(report):
        promising = max(report.candidates[1:], key=lambda candidate: candidate.expected_gain, default=None)
        if promising is None or promising.expected_gain <= 0:
            claim = f"no order is expected to do better on new examples: the {original_name(report)} stays"
        else:
            claim = (
                f"the {original_name(report)} stays: the best other order is expected to gain "
                f"{score(promising.expected_gain, comparison, sign=True)} on new examples, but with "
                f"p = {promising.probability:.2f}, below min_probability"
            )
        return [claim, *_advice(report)]
    expected, probability = comparison.expected_gain, comparison.probability
    claim = (
        f"chosen: expected {score(expected, comparison, sign=True)} on new examples, p = {probability:.2f}"
    )
    if probability >= SURE:
        return [f"{claim}: better"]
    return [f"{claim}: may be chance", *_advice(report)]


def _advice(report: Report) -> list[str]:
    """What was short: calls, examples, or anything to find."""
    evidence, settings = report.evidence, report.settings
    if evidence is None:
        return []
    racing = bool(settings.get("racing"))
    # Elsewhere the selection split alone compares.
    usable = settings.get("num_selection", 0) + (settings.get("num_train", 0) if racing else 0)
    if not evidence.num_differing and evidence.num_met >= min(ENOUGH_MET, ALL_COMPARED * usable):
        return [
            f"no score differed between orders on {evidence.num_met} examples: the demos may not reach the model, "
            "or their order decides nothing"
        ]
    seen = f"both orders were scored on {evidence.num_compared} of {usable} examples"
    if not evidence.num_differing:
        seen = f"only {evidence.num_met} examples were scored under two orders or more, and no score differed"
    if not racing or evidence.num_compared >= ALL_COMPARED * usable:
        return [f"{seen}: only further examples, in the trainset or as a valset, would tell more"]
    if report.stopped == BUDGET:
        return [f"{seen}: a larger budget (max_metric_calls) would tell more"]
    return [f"{seen}: the search was ended early ({report.stopped})"]

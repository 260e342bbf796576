"""What a compile did and found, in words."""

from __future__ import annotations

import math

from plr_dspy.report.schema import Comparison, Findings

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


def readable(count: float) -> str:
    """A number of prompts: in full, or as a power of ten where nobody would read it."""
    return f"{count:,.0f}" if count < 1e12 else f"10^{math.log10(count):.0f}"


def score(value: float, comparison: Comparison, *, sign: bool = False) -> str:
    """A score, or with a sign a difference of two, with so many decimals that small scores can be told apart."""
    largest = max(abs(comparison.original), abs(comparison.chosen))
    decimals = 3 if largest >= 0.01 or not largest else 2 - math.floor(math.log10(largest))
    return f"{value:{'+' * sign}.{decimals}f}"


def scored_on_examples(findings: Findings) -> bool:
    """Whether orders were scored by the metric in the search, not by their label probabilities."""
    return bool(findings.settings.get("scored_on", "train examples") == "train examples")


def overview(findings: Findings) -> str:
    """One line: the method, what there was to order, what it cost, what ended it."""
    resumed = findings.program_calls.get("resumed", 0)
    earlier = f" ({resumed:,} of them before this part)" if resumed else ""
    return (
        f"{findings.settings.get('method', 'PLReorder')}: {len(findings.slots)} predictor(s) with demos, "
        f"{readable(findings.distinct_prompts)} distinct prompts, "
        f"{findings.program_calls['total']:,} program calls{earlier}, {findings.seconds:.0f} s; {findings.stopped}"
    )


def result(findings: Findings) -> str:
    """Say in a few words what came of a compile: both scores, how sure that is, and what it cost."""
    calls = f"{findings.program_calls['total']:,} calls"
    stays = f"the {original_name(findings)} stays"
    if (c := findings.comparison) is None:
        what = stays if original_stays(findings) else "the order is not compared with the original one"
        return f"{what} ({findings.stopped}), {calls}"
    if original_stays(findings):
        return f"{stays}, {score(c.original, c)} on {c.num_examples} examples, {calls}"
    chance = "" if c.probability >= SURE else " (may be chance)"
    return (
        f"{score(c.original, c)} -> {score(c.chosen, c)} on {c.num_examples} examples, "
        f"better with probability {c.probability:.2f}{chance}, {calls}"
    )


def original_stays(findings: Findings) -> bool:
    """Whether a compile returned what the user had."""
    if findings.candidates:
        return findings.candidates[0].ordering == {slot.predictor: slot.ordering for slot in findings.slots}
    return all(slot.ordering == sorted(slot.ordering) for slot in findings.slots)


def calls_by_phase(findings: Findings) -> dict[str, int]:
    """Program calls by what they were spent on, those phases that made any."""
    return {what: calls for name, what in PHASES.items() if (calls := findings.program_calls.get(name))}


def verdict(findings: Findings) -> list[str]:
    """What the compile says about the chosen and the original order, a line for each statement."""
    if (c := findings.comparison) is not None:
        lines = [
            f"{original_name(findings)} {score(c.original, c)}, chosen order {score(c.chosen, c)} "
            f"on {c.num_examples} examples",
        ]
        if c.gain:
            gain, low, high = (score(value, c, sign=True) for value in (c.gain, *c.interval))
            lines.append(
                f"gain {gain} there, {100 * c.confidence:.0f} % interval [{low}, {high}] "
                f"(for the best of {c.num_candidates} orders)"
            )
        return lines + _claim(findings, c)
    if findings.evidence is not None:
        return [*_advice(findings), f"the {original_name(findings)} stays"]
    if not scored_on_examples(findings):
        return ["chosen by label probabilities; not compared with the original order"]
    if findings.history:
        return [
            f"not compared with the original order; the best order is estimated to score "
            f"{findings.history[-1].best_score_so_far:.3f} on train examples",
            "with log_dir, the same compile goes on from here",
        ]
    return []


def original_name(findings: Findings) -> str:
    """What a report calls that which the user had."""
    without = findings.candidates and not any(findings.candidates[0].ordering.values())
    return "student without demos" if without else "original order"


def summary(findings: Findings) -> str:
    """All of it, for a terminal."""
    lines = []
    if calls := calls_by_phase(findings):
        lines.append("calls: " + ", ".join(f"{what} {count:,}" for what, count in calls.items()))
    lines += verdict(findings)
    lines += [f"{slot.predictor}: demos in the order {slot.ordering}" for slot in findings.slots]
    lines += [
        f"tokens of {model}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())
        for model, counts in findings.tokens.items()
    ]
    lines += [
        f"{error.count} call(s) {error.outcome}: {error.type}: {error.message} ({', '.join(error.examples)})"
        for error in findings.errors
    ]
    return "\n  ".join([overview(findings), *lines])


def _claim(findings: Findings, comparison: Comparison) -> list[str]:
    """What is expected on new examples, how sure that is, and what would make it surer."""
    if not scored_on_examples(findings):
        worse = ": on these it is worse than the original one" if comparison.gain < 0 else ""
        return [f"the order was chosen by its label probabilities, not by these examples{worse}"]
    if original_stays(findings):
        promising = max(findings.candidates[1:], key=lambda candidate: candidate.expected_gain, default=None)
        if promising is None or promising.expected_gain <= 0:
            claim = f"no order is expected to do better on new examples: the {original_name(findings)} stays"
        else:
            claim = (
                f"the {original_name(findings)} stays: the best other order is expected to gain "
                f"{score(promising.expected_gain, comparison, sign=True)} on new examples, but with "
                f"p = {promising.probability:.2f}, below min_probability"
            )
        return [claim, *_advice(findings)]
    expected, probability = comparison.expected_gain, comparison.probability
    claim = (
        f"chosen: expected {score(expected, comparison, sign=True)} on new examples, p = {probability:.2f}"
    )
    if probability >= SURE:
        return [f"{claim}: better"]
    return [f"{claim}: may be chance", *_advice(findings)]


def _advice(findings: Findings) -> list[str]:
    """What was short: calls, examples, or anything to find."""
    evidence, settings = findings.evidence, findings.settings
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
    if findings.stopped == BUDGET:
        return [f"{seen}: a larger budget (max_metric_calls) would tell more"]
    return [f"{seen}: the search was ended early ({findings.stopped})"]

"""Says what a compile did and found, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plr_dspy.report.numbers_of_demos import numbers_of_demos
from plr_dspy.report.schema import Comparison, ErrorCount, SlotReport

if TYPE_CHECKING:
    from plr_dspy.report.report import Report

MIN_PROBABILITY = 0.5
"""Of being better on new examples, that it takes to replace the original where users do not say otherwise."""

SURE = 0.9
"""From this probability of being better on new examples on, an order is called better."""

ENOUGH_TO_GIVE_UP = 20
"""If no score differed between orders on so many examples, there is nothing to find."""

ENOUGH_COMPARED = 0.8
"""If both orders were scored on this share of all examples, more calls would tell little."""

FEW_EXAMPLES = 30
"""With fewer, chance decides which order looks best."""

BUDGET = "budget"
"""The reason for its end that a search gives when it used all of its calls."""

PHASES = {
    "bootstrap": "bootstrapped demos",
    "search": "search",
    "race": "race of the best",
    "final": "final comparison",
    "original": "original one there",
}
"""The names that texts give to what program calls are spent on, by their names in a report."""


def dollars(cost: float) -> str:
    """Write US dollars to the cent, and less than ten cents to two digits."""
    decimals = 2 if cost >= 0.1 or not cost else 1 - math.floor(math.log10(cost))
    return f"${cost:,.{decimals}f}"


def prompt_count(count: float) -> str:
    """Write a number of prompts in full, or as a power of ten where nobody would read it."""
    return f"{count:,.0f}" if count < 1e12 else f"10^{math.log10(count):.0f}"


def score(value: float, comparison: Comparison, *, sign: bool = False) -> str:
    """Write a score, or with a sign a difference of two, with enough decimals to tell small scores apart."""
    largest = max(abs(comparison.original), abs(comparison.chosen))
    decimals = 3 if largest >= 0.01 or not largest else 2 - math.floor(math.log10(largest))
    return f"{value:{'+' * sign}.{decimals}f}"


def is_scored_by_metric(report: Report) -> bool:
    """Tell whether the search scored orders by the metric, not by their label probabilities."""
    return bool(report.settings.get("scored_on", "train examples") == "train examples")


def overview(report: Report) -> str:
    """Say in one line what there was to order, by which method, what that cost, and what ended it."""
    resumed = report.program_calls.get("resumed", 0)
    earlier = f" ({resumed:,} of them before this part)" if resumed else ""
    cost = "" if report.cost is None else f"{dollars(report.cost)}, "
    return (
        f"{report.settings.get('method', 'PLReorder')}: {len(report.slots)} predictor(s) with demos, "
        f"{prompt_count(report.distinct_prompts)} distinct prompts, "
        f"{report.program_calls['total']:,} program calls{earlier}, {cost}{report.seconds:.0f} s; {report.stopped}"
    )


def result(report: Report) -> str:
    """Give both scores in a few words, with how sure the difference is, and what the compile cost."""
    cost = "" if report.cost is None else f", {dollars(report.cost)}"
    calls = f"{report.program_calls['total']:,} calls{cost}"
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
    """Tell whether a compile returned what the user had, as it was."""
    return not is_calibrated(report) and all(slot.ordering == slot.original for slot in report.slots)


def is_calibrated(report: Report) -> bool:
    """Tell whether the returned program was calibrated by the compile."""
    return report.calibration is not None and report.calibration.applied


def calls_by_phase(report: Report) -> dict[str, int]:
    """Count program calls by what they were spent on; what made none is left out."""
    return {what: calls for name, what in PHASES.items() if (calls := report.program_calls.get(name))}


def verdict(report: Report) -> list[str]:
    """Compare the chosen and the original order, a line for each statement."""
    if (c := report.comparison) is not None:
        lines = [
            f"{original_name(report)} {score(c.original, c)}, chosen {noun(report)} {score(c.chosen, c)} "
            f"on {c.num_examples} examples",
        ]
        if c.expected_original and c.expected_chosen and is_scored_by_metric(report):
            chosen = (
                "" if original_stays(report) else f", {chosen_name(report)} {_interval(c.expected_chosen, c)}"
            )
            before = _interval(c.expected_original, c)
            lines.append(f"expected on new examples: {original_name(report)} as it is {before}{chosen}")
        if c.gain:
            gain, low, high = (score(value, c, sign=True) for value in (c.gain, *c.interval))
            lines.append(
                f"gain {gain} there, {100 * c.confidence:.0f} % interval [{low}, {high}] "
                f"(for the best of {c.num_candidates} {noun(report)}s)"
            )
        return lines + _claim(report, c)
    if report.evidence is not None:
        return [*_advice(report), f"the {original_name(report)} stays"]
    if not is_scored_by_metric(report):
        return ["chosen by label probabilities; not compared with the original order"]
    if report.history:
        return [
            f"not compared with the {original_name(report)}; the best {noun(report)} is estimated to score "
            f"{report.history[-1].best_score_so_far:.3f} on train examples",
            "with log_dir, the same compile goes on from here",
        ]
    return []


def original_name(report: Report) -> str:
    """Name what the user had: an order of demos, or a student without any."""
    showed_any = any(slot.original for slot in report.slots)
    return f"original {noun(report)}" if showed_any else "student without demos"


def chosen_name(report: Report) -> str:
    """Name what was chosen."""
    return f"chosen {noun(report)}{', calibrated' * is_calibrated(report)}"


def _interval(values: tuple[float, float, float], comparison: Comparison) -> str:
    """Write a score with the interval that it lies in."""
    value, low, high = (score(each, comparison) for each in values)
    return f"{value} [{low}, {high}]"


def noun(report: Report) -> str:
    """Name what was chosen: an order, or an arrangement of demos of a pool."""
    return "arrangement" if any(slot.is_pool for slot in report.slots) else "order"


def summary(report: Report) -> str:
    """Write the whole report for a terminal."""
    lines = []
    if calls := calls_by_phase(report):
        lines.append("calls: " + ", ".join(f"{what} {count:,}" for what, count in calls.items()))
    lines += [*verdict(report), *learnt(report), *calibration(report)]
    lines += [_shown(slot) for slot in report.slots]
    lines += numbers_of_demos(report)
    lines += [
        f"tokens of {model}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items())
        for model, counts in report.tokens.items()
    ]
    lines += [
        f"{error.count} call(s) {error.outcome}{_whose(error, report)}: {error.type}: {error.message} "
        f"({', '.join(error.examples)})"
        for error in report.errors
    ]
    return "\n  ".join([overview(report), *lines])


def _whose(error: ErrorCount, report: Report) -> str:
    """Say how many of the calls that ended in an error were the original's."""
    if not error.of_original:
        return ""
    return f", {error.of_original} of the {error.calls_of_original} of the {original_name(report)}"


def _shown(slot: SlotReport) -> str:
    """Say which demos of a predictor are shown in which order."""
    if slot.original and not slot.is_pool:
        return f"{slot.predictor}: demos in the order {slot.ordering}"
    return f"{slot.predictor}: {len(slot.ordering)} of {slot.num_demos} demos, in the order {slot.ordering}"


def learnt(report: Report) -> list[str]:
    """Say what the search learnt from, if that was to be found out, and how far the orders lean to a label."""
    signal = report.signal
    if signal is None or not report.history:  # What an endpoint gives is known after the first call.
        return []
    if signal.used == "score":
        return [f"learnt from scores alone: {signal.reason}"] if signal.reason else []
    lines = ["learnt from the log-probabilities of labels that came with the calls"]
    if (leaning := signal.leaning) is None:
        return lines
    calibrated = report.settings.get("calibrate") not in (None, False)
    furthest = max(range(len(signal.labels)), key=lambda i: leaning.original[i] - leaning.right[i])
    said = f"answers {signal.labels[furthest]!r} on {100 * leaning.original[furthest]:.0f} % of the examples"
    share, chosen = 100 * leaning.chosen[furthest], ""
    if not original_stays(report):
        chosen = f", the chosen {noun(report)} on {share:.0f} %"
    return [
        *lines,
        f"{'before calibration, ' * calibrated}the {original_name(report)} {said}{chosen}; that label is right on "
        f"{100 * leaning.right[furthest]:.0f} %",
    ]


def calibration(report: Report) -> list[str]:
    """Say what calibration does, and whether it alone is as good as the order."""
    if (effect := report.calibration) is None:
        return []
    name, chosen, labels = original_name(report), "", report.signal.labels if report.signal else []
    if not original_stays(report):
        told = f"{effect.chosen_calibrated:.2f} calibrated"
        if not effect.applied:
            told = f"{effect.chosen:.2f} as it is, {told}"
        chosen = f"; the chosen {noun(report)} {told}"
    always = ""
    if effect.always and len(labels) == len(effect.always):
        most = max(range(len(labels)), key=effect.always.__getitem__)
        always = f"; always answering {labels[most]!r} {effect.always[most]:.2f}"
    lines = [
        f"expected on examples like these {effect.num_examples}: {name} {effect.original:.2f} as it is, "
        f"{effect.original_calibrated:.2f} calibrated{chosen}{always}"
    ]
    to = "answers are not calibrated: the likeliest label as it is scores better"
    if effect.shares and len(labels) == len(effect.shares):
        shares = zip(labels, effect.shares, strict=True)
        told = ", ".join(f"{label!r} {share:.2f}" for label, share in shares)
        to = f"calibrated to these shares of labels: {told}"
    lines.append(to)
    if effect.applied:
        what = "is calibrated" if effect.shares else "answers its likeliest label"
        return [*lines, f"the returned program {what}: it needs the probabilities of labels at each use"]
    if report.settings.get("calibrate") not in (None, False):
        return [*lines, f"the returned program is the {name} as it was"] if original_stays(report) else lines
    unread = _share_unread(report)
    calibrated = (1 - unread) * effect.original_calibrated
    if unread:
        lines.append(
            f"{100 * unread:.0f} % of the replies of the {name} could not be read: if calibration cannot read them "
            f"either, it gives {calibrated:.2f}"
        )
    if calibrated > effect.original and calibrated >= effect.chosen:
        lines.append(
            "calibration alone, which needs no search, is expected to give as much: use BatchCalibration, or "
            f"calibrate=True for an {noun(report)} that is chosen under it"
        )
    return lines


def _share_unread(report: Report) -> float:
    """Tell which part of what the user's own program replied could not be read."""
    wrong = [error for error in report.errors if error.outcome == "counted as wrong"]
    return sum(error.of_original for error in wrong) / max([1, *(error.calls_of_original for error in wrong)])


def _claim(report: Report, comparison: Comparison) -> list[str]:
    """Say what is expected on new examples, how sure that is, and what would make it surer."""
    if not is_scored_by_metric(report):
        worse = ": on these it is worse than the original one" if comparison.gain < 0 else ""
        return [f"the order was chosen by its label probabilities, not by these examples{worse}"]
    if original_stays(report):
        promising = max(report.candidates[1:], key=lambda candidate: candidate.expected_gain, default=None)
        if promising is None or promising.expected_gain <= 0:
            claim = f"no {noun(report)} is expected to do better on new examples: the {original_name(report)} stays"
        elif promising.probability >= (least := report.settings.get("min_probability", MIN_PROBABILITY)):
            claim = f"the {original_name(report)} stays: no two {noun(report)}s scored differently on the same example"
        else:
            claim = (
                f"the {original_name(report)} stays: the best other {noun(report)} is expected to gain "
                f"{score(promising.expected_gain, comparison, sign=True)} on new examples, but with "
                f"p = {promising.probability:.2f}, below min_probability={least:g}"
            )
        return [claim, *_advice(report)]
    expected, probability = comparison.expected_gain, comparison.probability
    low, high = (score(end, comparison, sign=True) for end in comparison.gain_interval)
    claim = (
        f"chosen: expected {score(expected, comparison, sign=True)} on new examples, interval [{low}, {high}], "
        f"p = {probability:.2f}"
    )
    if probability >= SURE:
        return [f"{claim}: better"]
    return [f"{claim}: may be chance", *_advice(report)]


def _advice(report: Report) -> list[str]:
    """Say what was short: calls, examples, or a difference that could be found."""
    evidence, settings = report.evidence, report.settings
    if evidence is None:
        return []
    racing = bool(settings.get("racing"))
    # A method without a race compares on the selection split alone.
    usable = settings.get("num_selection", 0) + (settings.get("num_train", 0) if racing else 0)
    if not evidence.num_differing and evidence.num_met >= min(ENOUGH_TO_GIVE_UP, ENOUGH_COMPARED * usable):
        return [
            f"no score differed between {noun(report)}s on {evidence.num_met} examples: the demos may not reach the "
            f"model, or their {noun(report)} decides nothing"
        ]
    seen = f"both {noun(report)}s were scored on {evidence.num_compared} of {usable} examples"
    if not evidence.num_differing:
        met = f"only {evidence.num_met} examples were scored under two {noun(report)}s or more"
        seen = f"{met}, and no score differed"
    ended = report.stopped == BUDGET
    # So few examples have no use for a larger budget: it would be cut to the same number of calls.
    all_used = ended and (settings.get("max_metric_calls") or 0) >= settings.get(
        "most_useful_calls", math.inf
    )
    if not racing or all_used or evidence.num_compared >= ENOUGH_COMPARED * usable:
        return [f"{seen}: only further examples, in the trainset or as a valset, would tell more"]
    if ended:
        examples = " and more examples" * (usable < FEW_EXAMPLES)
        return [f"{seen}: a larger budget (max_metric_calls){examples} would tell more"]
    return [f"{seen}: the search was ended early ({report.stopped})"]

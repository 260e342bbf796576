"""What a compile did and found, in words."""

from __future__ import annotations

import math

from plr_dspy.findings import Comparison, Findings

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


def calls_by_phase(findings: Findings) -> dict[str, int]:
    """Program calls by what they were spent on, those phases that made any."""
    return {what: calls for name, what in PHASES.items() if (calls := findings.program_calls.get(name))}


def verdict(findings: Findings) -> list[str]:
    """What the compile says about the chosen and the original order, a line for each statement."""
    if (c := findings.comparison) is not None:
        lines = [
            f"original order {c.original:.3f}, chosen order {c.chosen:.3f} on {c.num_examples} examples",
        ]
        if c.gain:
            lines.append(
                f"gain {c.gain:+.3f}, {100 * c.confidence:.0f} % interval "
                f"[{c.interval[0]:+.3f}, {c.interval[1]:+.3f}] (for the best of {c.num_candidates} orders)"
            )
        return lines + _advice(findings, c)
    if not scored_on_examples(findings):
        return ["chosen by label probabilities; not compared with the original order"]
    if findings.history:
        return [
            f"not compared with the original order; the best order scored "
            f"{findings.history[-1].best_score_so_far:.3f} on train examples",
            "with log_dir, the same compile goes on from here",
        ]
    return []


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


def _advice(findings: Findings, comparison: Comparison) -> list[str]:
    chosen = {slot.predictor: slot.ordering for slot in findings.slots}
    candidates, settings = findings.candidates, findings.settings
    if not scored_on_examples(findings):
        worse = ": on these it is worse than the original one" if comparison.gain < 0 else ""
        return [f"the order was chosen by its label probabilities, not by these examples{worse}"]
    if candidates and candidates[0].ordering == chosen:
        if all(c.estimate <= candidates[0].estimate for c in candidates):
            return ["no order was better: the original one stays"]
        return ["no order is better for sure: the original one stays; a larger budget might tell"]
    if comparison.gain <= 0:
        estimates = {str(c.ordering): c.estimate for c in candidates}
        gain = estimates[str(chosen)] - candidates[0].estimate
        likely = "" if comparison.probability is None else f", with probability {comparison.probability:.2f}"
        return [
            f"not better on these examples; by all calls, those of the search included, it is {gain:+.3f} "
            f"better{likely}"
        ]
    if comparison.interval[0] > 0:
        return []
    compared = settings.get("num_selection_examples", comparison.num_examples)
    all_used = compared >= settings.get("num_selection", 0)
    cure = "more examples (in the trainset, or as a valset)" if all_used else "a larger budget"
    return [f"the interval holds 0: this gain may be chance; {cure} would tell"]

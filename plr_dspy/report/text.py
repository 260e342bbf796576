"""Writes what a compile did and chose, in words: the lines of `print(report)`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from plr_dspy.report.schema import (
    EXPECTED,
    Alternative,
    CalibrationEffect,
    Comparison,
    ProgramState,
    ReportData,
    ScoreRange,
)
from plr_dspy.report.stop import StopReason

MIN_WIN_PROBABILITY = 0.9  # An order is called better if it is at least this likely to be better on new examples.
ENOUGH_TO_GIVE_UP = 20  # If no score differs between orders on this many examples, there is nothing to find.
ENOUGH_COMPARED = 0.8  # If both orders were scored on this share of all examples, more calls would tell little.
MANY_UNREAD = 0.1  # A report begins with the replies that cannot be read if they have at least this share.
FEW_EXAMPLES = 30  # With fewer examples, chance decides which order looks best.
# Outcomes of calls without a score.
WRONG = "counted as wrong"
FAILED = "not scored"
# After one of these, the same compile has no more to do.
AS_PLANNED = (StopReason.BUDGET, StopReason.ALL_ROUNDS, StopReason.ALL_ASKED, StopReason.ONE_PROMPT)
KEEP = 'keep it: program.save("program.json"); load it: plr_dspy.load_program(student, "program.json")'


def count(number: int, noun: str) -> str:
    """Write a number with its noun, such as "3 demos"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def prompt_count(number: float) -> str:
    """Write a number of prompts in full, or as a power of ten if it is long."""
    if number < 1e12:
        return f"{number:,.0f}"
    return f"10^{math.log10(number):.0f}"


def dollars(cost: float) -> str:
    """Write US dollars to the cent, and less than ten cents to two digits."""
    decimals = 2
    if 0 < cost < 0.1:
        decimals = 1 - math.floor(math.log10(cost))
    return f"${cost:,.{decimals}f}"


def shorten(text: str, width: int) -> str:
    """Cut a text to at most this width."""
    if len(text) <= width:
        return text
    return text[: width - 1].rstrip() + "…"


def shares_by_label(labels: Sequence[str], shares: Iterable[float]) -> str:
    """Write the shares of labels."""
    return ", ".join(f"{label!r} {share:.2f}" for label, share in zip(labels, shares, strict=False))


def score(value: float, comparison: Comparison, sign: str = "") -> str:
    """Write a score with enough decimals to tell small scores apart; the sign "+" is for differences."""
    largest = max(abs(comparison.original), abs(comparison.chosen))
    decimals = 3
    if 0 < largest < 0.01:
        decimals = 2 - math.floor(math.log10(largest))
    return f"{value:{sign}.{decimals}f}"


def score_range(values: ScoreRange, comparison: Comparison, sign: str = "") -> str:
    """Write a score with its interval."""
    value, low, high = (score(value, comparison, sign) for value in values)
    return f"{value} [{low}, {high}]"


def method(report: ReportData) -> str:
    """Return the name of the optimizer."""
    return str(report.settings.get("method", "PLReorder"))


def noun(report: ReportData) -> str:
    """Name what was chosen: an order of demos, or an arrangement of demos from a pool."""
    if any(slot.origins for slot in report.slots):
        return "arrangement"
    return "order"


def original_name(report: ReportData) -> str:
    """Name the student: an order of demos, or a student without demos."""
    if any(slot.original for slot in report.slots):
        return f"original {noun(report)}"
    return "student without demos"


def _cost(report: ReportData) -> str:
    if report.cost is None:
        return ""
    return f", {dollars(report.cost)}"


def result(report: ReportData) -> str:
    """Describe the result of a compile and its cost in one line."""
    verdict = next(_verdict(report))
    return f"{verdict}; {report.program_calls['total']:,} calls{_cost(report)}; {report.stopped}"


def summary(report: ReportData) -> Iterator[str]:
    """Yield the lines on costs, scores, how sure the gain is, and how to load the result."""
    yield "\n".join([*_unread_replies(report), _header(report)])
    yield _your_program(report)
    if not report.original_stays:
        yield _returned_program(report)
    yield from _verdict(report)
    yield from _simpler_ways(report)
    yield from _calibration(report)
    yield from _numbers_of_demos(report)
    yield from _labels_of_demos(report)
    yield from _retrieval(report)
    yield from _vote(report)
    was_chosen = report.comparison is not None or report.retrieves
    if was_chosen and not report.original_stays:
        yield KEEP


def _unread_replies(report: ReportData) -> Iterator[str]:
    """Warn of many replies that cannot be read: no score tells that as clearly."""
    programs = {"your program": report.original}
    if not report.original_stays:
        programs["the returned program"] = report.returned
    for name, state in programs.items():
        if _has_many_unread(state):
            percent = 100 * state.num_unread / state.num_calls
            yield (
                f"{state.num_unread} of {state.num_calls} replies of {name} cannot be read ({percent:.0f} %): they "
                "count as wrong; another adapter, or demos, may help"
            )


def _has_many_unread(state: ProgramState) -> bool:
    return state.num_unread > 0 and state.num_unread >= MANY_UNREAD * state.num_calls


def _header(report: ReportData) -> str:
    notes = {
        "of them from log_dir": report.program_calls.get("resumed", 0),
        "failed": _count_errors(report, FAILED),
        "with a reply that could not be read": _count_errors(report, WRONG),
    }
    noted = ", ".join(f"{number:,} {note}" for note, number in notes.items() if number)
    calls = f"{report.program_calls['total']:,} program calls"
    if noted:
        calls += f" ({noted})"
    return f"{method(report)}: {calls}{_cost(report)}, {report.seconds:.0f} s; {report.stopped}"


def _count_errors(report: ReportData, outcome: str) -> int:
    return sum(error.count for error in report.errors if error.outcome == outcome)


def _your_program(report: ReportData) -> str:
    parts = _state(report.original)
    if report.comparison is not None:
        original_score, _ = report.comparison.score_ranges
        parts = [_expected_score(original_score, report.comparison), *parts]
    return f"your program: {', '.join(parts)}"


def _returned_program(report: ReportData) -> str:
    name = "returned program"
    note = ""
    if report.is_calibrated:
        name += ", calibrated"
        note = " before calibration"
    parts = _state(report.returned, note)
    if report.comparison is not None:
        _, chosen_score = report.comparison.score_ranges
        parts = [_expected_score(chosen_score, report.comparison), *parts]
    elif report.stop_reason in (StopReason.INTERRUPTED, StopReason.ERROR):
        name = "best so far"
    return f"{name}: {', '.join(parts)}"


def _expected_score(values: ScoreRange, comparison: Comparison) -> str:
    if comparison.scored_on == EXPECTED:
        return f"score {score_range(values, comparison)} {EXPECTED}"
    return f"score {score(values[0], comparison)} {comparison.scored_on}"


def _state(state: ProgramState, note: str = "") -> list[str]:
    """Count the demos of a program, its calls, and the calls without a score."""
    parts = [count(state.num_demos, "demo")]
    if state.demo_tokens is not None:
        parts[0] += f" ({state.demo_tokens:,} tokens)"
    if state.num_calls:
        parts.append(count(state.num_calls, "call"))
    if state.num_failed:
        parts.append(f"{state.num_failed} of them without an answer to score{note}")
    return parts


def _verdict(report: ReportData) -> Iterator[str]:
    """State the gain on new examples, how sure it is, and what would make it surer."""
    comparison = report.comparison
    if report.settings.get("scored_on", "train examples") != "train examples":
        yield _verdict_by_labels(comparison)
    elif comparison is None:
        yield from _verdict_without_comparison(report)
    elif report.original_stays:
        yield f"{_stays(report)}: {_why_original_stays(report, comparison)}"
        yield from _advice(report)
    else:
        gain = score_range((comparison.expected_gain, *comparison.gain_interval), comparison, "+")
        better = f"better with probability {comparison.probability:.2f}"
        if comparison.probability >= MIN_WIN_PROBABILITY:
            yield f"gain {gain} {EXPECTED}, {better}"
        else:
            worse = f"worse with {comparison.probability_worse:.2f}"
            yield f"gain {gain} {EXPECTED}, may be chance ({better}, {worse})"
            yield from _advice(report)


def _verdict_by_labels(comparison: Comparison | None) -> str:
    if comparison is None:
        return "chosen by label probabilities; not compared with the original order"
    line = "the order was chosen by its label probabilities, not by these examples"
    if comparison.gain < 0:
        line += ": on these it is worse than the original one"
    return line


def _verdict_without_comparison(report: ReportData) -> Iterator[str]:
    if report.retrieves and not report.history:
        yield "no call was made: this variation needs no search, and its gain is not known"
        return
    if report.evidence is not None:
        yield _stays(report)
        yield from _advice(report)
        return
    name = original_name(report)
    if report.history:
        best_score = f"{report.history[-1].best_score_so_far:.3f} on train examples"
        yield f"not compared with the {name}; the best {noun(report)} is estimated to score {best_score}"
    else:
        yield f"nothing was compared with the {name}, which stays{_although_unread(report)}"
    if report.stop_reason not in AS_PLANNED:
        yield "with log_dir, the same compile goes on from here; without, the next one begins anew"


def _stays(report: ReportData) -> str:
    return f"the {original_name(report)} stays{_although_unread(report)}"


def _although_unread(report: ReportData) -> str:
    state = report.original
    if not _has_many_unread(state):
        return ""
    return f", although {state.num_unread} of its {state.num_calls} replies cannot be read"


def _why_original_stays(report: ReportData, comparison: Comparison) -> str:
    what = noun(report)
    others = report.candidates[1:]
    by_score = not report.settings.get("racing", True)
    if by_score and all(candidate.score <= comparison.original for candidate in others):
        return f"no {what} scored better on these examples"
    best_other = max(others, key=lambda candidate: candidate.expected_gain, default=None)
    if best_other is None or best_other.expected_gain <= 0:
        return f"no {what} is expected to do better on new examples"
    gain = score(best_other.expected_gain, comparison, "+")
    probability = math.floor(100 * best_other.probability) / 100  # Rounded up, it could seem to reach the limit.
    missing = "it must be 3 times as likely to be better"
    min_probability = report.settings.get("min_probability")
    if min_probability is not None:
        missing = f"less than min_probability={min_probability:g}"
    return (
        f"the best other {what} is expected to gain {gain} on new examples, better with probability "
        f"{probability:.2f}, worse with {best_other.probability_worse:.2f}: {missing}"
    )


def _advice(report: ReportData) -> Iterator[str]:
    """State what was short: calls, examples, or a difference that could be found."""
    evidence = report.evidence
    if evidence is None or not evidence.num_met:  # The search ended before two orders met.
        return
    is_racing = bool(report.settings.get("racing"))
    num_usable: int = report.settings.get("num_selection", 0)
    if is_racing:  # A method without a race compares on the selection split alone.
        num_usable += report.settings.get("num_train", 0)
    enough = ENOUGH_COMPARED * num_usable
    what = noun(report)
    seen = f"{evidence.num_met} of {num_usable} examples were scored in two {what}s, and no score differed"
    needed = "a larger budget (max_metric_calls)"
    if num_usable < FEW_EXAMPLES:
        needed += " and more examples"
    advice = f"{needed} would tell more"
    if evidence.num_differing:
        both = f"the original and the most promising other {what} were both"
        seen = f"{both} scored on {evidence.num_compared} of {num_usable} examples"
    else:
        advice = f"see whether answers can be read, and score at all (dspy.inspect_history()); if so, {advice}"
    if not evidence.num_differing and is_racing and evidence.num_met >= min(ENOUGH_TO_GIVE_UP, enough):
        advice = "the demos may not matter here; if they should, check that they reach the model"
    elif not is_racing or evidence.num_compared >= enough or _has_all_useful_calls(report):
        advice = "only further examples, in the trainset or as a valset, would tell more"
    elif report.stop_reason is not StopReason.BUDGET:
        advice = f"the search was ended early ({report.stopped})"
    yield f"{seen}: {advice}"


def _has_all_useful_calls(report: ReportData) -> bool:
    """Tell whether a larger budget would be cut to the same number of calls, because examples are few."""
    if report.comparison is None or report.stop_reason is not StopReason.BUDGET:
        return False
    budget: int = report.settings.get("max_metric_calls") or 0
    most_useful: float = report.settings.get("most_useful_calls", math.inf)
    return budget >= most_useful


def _simpler_ways(report: ReportData) -> Iterator[str]:
    comparison = report.comparison
    alternatives = list(filter(None, [report.random, report.constant]))
    if comparison is None or not alternatives:
        return
    phrases = []
    for alternative in alternatives:
        value = score(alternative.score, comparison)
        if alternative.interval is not None:
            value = score_range((alternative.score, *alternative.interval), comparison)
        phrases.append(f"{alternative.name} {value}")
    yield f"for comparison, without any call: {', '.join(phrases)}"
    yield from _rivals(report, comparison, alternatives)


def _rivals(report: ReportData, comparison: Comparison, alternatives: list[Alternative]) -> Iterator[str]:
    """Name the simpler ways that score as much as the program, surely or possibly."""
    name = "the returned program"
    original_score, own_score = comparison.score_ranges
    if report.original_stays:
        name = "your program"
        own_score = original_score
    rivals = []
    possible_rivals = []
    for alternative in alternatives:
        lowest = alternative.score
        if alternative.interval is not None:
            lowest = alternative.interval[0]
        margin = 0.01 * max(abs(own_score[0]), abs(alternative.score))
        if own_score[0] <= lowest + margin:
            rivals.append(alternative.name)
        elif own_score[0] <= alternative.score + margin:
            possible_rivals.append(alternative.name)
    if rivals:
        yield f"{name} is no better than {' or '.join(rivals)}"
    if possible_rivals:
        yield f"{name} may be no better than {' or '.join(possible_rivals)}"


def _calibration(report: ReportData) -> Iterator[str]:
    """State what a calibrated program assumes, or advise calibration if it is expected to score more."""
    effect = report.calibration
    if effect is None:
        return
    if effect.applied:
        assumed = "nothing about how frequent labels are; the likeliest one is the answer"
        if effect.shares:
            assumed = f"labels are as frequent as {calibrated_shares(report, effect)}"
        yield f"assumed: {assumed}; the program needs the probabilities of labels at each use"
        return
    optimizer = "BatchCalibration"
    metric = str(report.settings.get("metric"))
    if "(" in metric:  # Only metrics over a set have arguments, and calibration takes them.
        optimizer += f"(metric={metric})"
    if report.settings.get("calibrate"):
        if report.original_stays and effect.original_calibrated > effect.original:
            scores = f"{effect.original:.2f} as it is, and {effect.original_calibrated:.2f} calibrated"
            yield f"by its few calls, your program scores {scores}: {optimizer} asks for 64 more"
        return
    share_answered = 1.0 - report.original.num_failed / max(1, report.original.num_calls)
    calibrated_score = share_answered * effect.original_calibrated
    if calibrated_score > max(effect.original, effect.chosen):
        expected = f"{calibrated_score:.2f}"
        if report.constant is not None:
            expected += f" ({report.constant.name} {report.constant.score:.2f})"
        yield (
            f"calibration alone, which needs no search, is expected to score {expected}, which is more: "
            f"use {optimizer}, or calibrate=True for an {noun(report)} that is chosen under it"
        )


def calibrated_shares(report: ReportData, effect: CalibrationEffect) -> str:
    """Write the shares that answers are calibrated to, and which examples they come from."""
    if report.signal is None:
        return ""
    shares = shares_by_label(report.signal.labels, effect.shares)
    is_given = isinstance(report.settings.get("calibrate"), dict)
    is_even = len(set(effect.shares)) == 1
    num_scored = report.settings.get("num_train", 0) + report.settings.get("num_selection", 0)
    if is_given or is_even or not num_scored:
        return shares
    return f"{shares} (from the labels of {num_scored} examples that score)"


def _numbers_of_demos(report: ReportData) -> Iterator[str]:
    chosen = report.chosen_of_number
    if chosen is None or chosen.interval is None:
        return
    numbers: dict[str, list[str]] = {"worse beyond chance": [], "better beyond chance": [], "may be as good": []}
    for other in report.best_by_number:
        # The verdict says how the student itself compares.
        is_student = not report.is_calibrated and other.num_demos == report.original.num_demos == 0
        if other is chosen or other.interval is None or is_student:
            continue
        gap = other.score - chosen.score
        # Compare the ends that face each other. Each interval is independent of the other, or wider than needed.
        margin = math.hypot(other.score - other.interval[0], chosen.interval[1] - chosen.score)
        if gap < 0:
            margin = math.hypot(other.interval[1] - other.score, chosen.score - chosen.interval[0])
        if abs(gap) <= margin:
            numbers["may be as good"].append(f"{other.num_demos}")
        elif gap > 0:
            numbers["better beyond chance"].append(f"{other.num_demos} ({gap:+.3f})")
        else:
            numbers["worse beyond chance"].append(f"{other.num_demos} ({gap:+.3f})")
    name = "numbers of demos"
    if report.is_calibrated:
        name += ", calibrated"
    parts = [f"{kind}: {', '.join(some)}" for kind, some in numbers.items() if some]
    yield "; ".join([f"{name}: {chosen.num_demos} chosen", *parts])


def _labels_of_demos(report: ReportData) -> Iterator[str]:
    """Warn if all demos of a predictor have the same label, although the examples have several."""
    for slot in report.slots:
        owner = ""
        if len(report.slots) > 1:
            owner = f" of {slot.predictor}"
        for label in slot.only_labels.values():
            yield f"all {len(slot.ordering)} demos{owner} have the label {label!r}"


def _retrieval(report: ReportData) -> Iterator[str]:
    retrieval = report.retrieval
    if retrieval is None:
        return
    if retrieval.variation is not None:
        pool = f"the file of the program holds all {retrieval.num_pooled:,} of the pool"
        yield f"demos: {retrieval.variation} ({retrieval.text}); {pool}"
    if retrieval.alternatives:
        yield f"{EXPECTED}: {', '.join(map(_alternative, retrieval.alternatives))}"


def _alternative(alternative: Alternative) -> str:
    parts = [f"{alternative.tokens:,} tokens"]
    if alternative.found_tokens:
        number = f"{alternative.found_tokens:,}"
        if alternative.found_tokens == alternative.tokens:
            number = "all"
        parts.append(f"{number} of which differ by input")
    if alternative.cost is not None:
        parts.append(f"{dollars(alternative.cost)} for 1,000 predictions")
    return f"{alternative.name} {alternative.score:.3f} ({', '.join(parts)})"


def _vote(report: ReportData) -> Iterator[str]:
    vote = report.vote
    if vote is None:
        return
    comparison = report.comparison
    line = f"{vote.name} {vote.score:.3f} on {vote.num_examples} examples"
    is_enough = False
    if comparison is not None and comparison.expected_chosen:
        # The expected score is shrunk, so the score on the selection split counts, too.
        is_enough = vote.score >= max(comparison.expected_chosen[0], comparison.chosen)
    if is_enough:
        yield f"{line}: demos='retrieved', or no language model at all, may do as well"
    elif report.retrieval is not None:
        yield line

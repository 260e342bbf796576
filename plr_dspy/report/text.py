"""Says what a compile did and found, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from plr_dspy.report.stop import StopReason

if TYPE_CHECKING:
    from plr_dspy.report.data import CalibrationEffect, Comparison, ProgramState, Report

MIN_WIN_PROBABILITY = 0.9  # from this probability of being better on new examples on, an order is called better
ENOUGH_TO_GIVE_UP = 20  # if no score differed between orders on so many examples, there is nothing to find
ENOUGH_COMPARED = 0.8  # if both orders were scored on this share of all examples, more calls would tell little
MANY_UNREAD = 0.1  # share of a program's replies that cannot be read, from which on a report begins with them
FEW_EXAMPLES = 30  # with fewer, chance decides which order looks best
WRONG, FAILED = "counted as wrong", "not scored"  # outcomes of calls without a score
EXPECTED = "expected on new examples"
# Ends of a compile after which the same compile has no more to do.
AS_PLANNED = (StopReason.BUDGET, StopReason.ALL_ROUNDS, StopReason.ALL_ASKED, StopReason.ONE_PROMPT)
KEEP = 'keep it: program.save("program.json"); load it: plr_dspy.load_program(student, "program.json")'


def details(report: Report) -> str:
    """Say all that a report holds, but for the rounds and most settings."""
    settings, c = report.settings, report.comparison
    calls = {phase: n for phase, n in report.program_calls.items() if n and phase not in ("total", "resumed")}
    where = [*settings.get("models", []), settings.get("adapter"), settings.get("metric")]
    lines = [
        *claims(report),
        f"{count(len(report.slots), 'predictor')} with demos, {prompt_count(report.distinct_prompts)} distinct prompts",
        f"{', '.join(map(str, filter(None, where)))}, seed {settings.get('seed')}",
    ]
    if calls:
        train, selection = settings.get("num_train"), settings.get("num_selection")
        lines.append(f"examples: {train} to search, {selection} to compare at the end{_repeated(report)}")
        lines.append("calls: " + ", ".join(f"{phase} {number:,}" for phase, number in calls.items()))
    if c is not None and c.gain:
        gain, low, high = (score(value, c, sign=True) for value in (c.gain, *c.interval))
        lines.append(
            f"final comparison alone: {score(c.original, c)} -> {score(c.chosen, c)} on {c.num_examples} examples, "
            f"gain {gain} [{low}, {high}] for the best of {c.num_candidates} {noun(report)}s"
        )
    if report.signal is not None and report.history:  # What an endpoint gives is known after the first call.
        if report.signal.used != "score":
            lines.append("learnt from the probabilities of labels that came with the calls")
        elif report.signal.reason:
            lines.append(f"learnt from scores alone: {report.signal.reason}")
    lines += _calibration(report)
    if (found := report.confusion) is not None:
        tables = [found.original, *([] if original_stays(report) else [found.returned])]
        for number, label in enumerate(found.labels):
            rates = [f"{each[number][number]} found, by {sum(row[number] for row in each)} answers" for each in tables]
            lines.append(f"{label!r}, {sum(found.original[number])} examples: {' -> '.join(rates)}")
    for slot in report.slots if not report.retrieves or any(slot.ordering for slot in report.slots) else ():
        some = f"{len(slot.ordering)} of {slot.num_demos} " if slot.origins or not slot.original else ""
        order = f"{some}demos in the order {slot.ordering}, the last next to the question"
        lines.append(f"{slot.predictor}: {order if slot.ordering else f'none of {slot.num_demos} demos'}")
        for number in slot.ordering:
            origin = f" ({slot.origins[number]})" if slot.origins else ""
            fields = {name: " ".join(value.split()) for name, value in slot.demos[number].items()}
            told = " | ".join(f"{name}: {shorten(value, 40)}" for name, value in fields.items())
            lines.append(f"  demo {number}{origin}: {told}")
    for best in report.best_by_number:
        told = f"best of {count(best.num_demos, 'demo')}: score {best.score:.3f}"
        if best.interval is not None:
            told += f" [{best.interval[0]:.3f}, {best.interval[1]:.3f}] by {best.num_examples} examples"
        lines.append(f"{told}, {best.tokens:,} tokens{' (chosen)' * (best is report.chosen_of_number)}")
    for model, counts in report.tokens.items():
        lines.append(f"tokens of {model}: {', '.join(f'{number:,} {kind}' for kind, number in counts.items())}")
    for error in report.errors:
        told = f"{error.type}: {error.message} ({', '.join(error.examples)})"
        lines.append(f"{count(error.count, 'call')} {error.outcome}: {told}")
    return "\n  ".join(lines)


def _repeated(report: Report) -> str:
    """Say how many examples were left out because they are copies of others."""
    number = report.settings.get("num_repeated", 0)
    return f"; {number} more, given twice, count once" if number else ""


def result(report: Report) -> str:
    """Say in a line what came of a compile, and what it cost."""
    return f"{_verdict(report)[0]}; {report.program_calls['total']:,} calls{_cost(report)}; {report.stopped}"


def original_stays(report: Report) -> bool:
    """Tell whether a compile returned what the user had, as it was."""
    calibrated = report.calibration is not None and report.calibration.applied
    if calibrated or report.retrieves or report.returned.num_demos != report.original.num_demos:
        return False
    return all(slot.ordering == slot.original for slot in report.slots)


def scores_of_both(c: Comparison) -> tuple[list[tuple[float, float, float]], str]:
    """Give the scores of your program and the returned one, with the ends of intervals, and say on which examples."""
    if c.expected_original and c.expected_chosen:
        return [c.expected_original, c.expected_chosen], EXPECTED
    return [(c.original,) * 3, (c.chosen,) * 3], f"on {c.num_examples} examples"


def noun(report: Report) -> str:
    """Name what was chosen: an order, or an arrangement of demos of a pool."""
    return "arrangement" if any(slot.origins for slot in report.slots) else "order"


def original_name(report: Report) -> str:
    """Name what the user had: an order of demos, or a student without any."""
    return f"original {noun(report)}" if any(slot.original for slot in report.slots) else "student without demos"


def dollars(cost: float) -> str:
    """Write US dollars to the cent, and less than ten cents to two digits."""
    decimals = 2 if cost >= 0.1 or not cost else 1 - math.floor(math.log10(cost))
    return f"${cost:,.{decimals}f}"


def count(number: int, noun: str) -> str:
    """Write so many of something."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def prompt_count(number: float) -> str:
    """Write a number of prompts in full, or as a power of ten where nobody would read it."""
    return f"{number:,.0f}" if number < 1e12 else f"10^{math.log10(number):.0f}"


def shorten(text: str, width: int) -> str:
    """Write the start of a text, of at most so many characters."""
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def shares_by_label(labels: Sequence[str], shares: Iterable[float]) -> str:
    """Write the shares of labels."""
    return ", ".join(f"{label!r} {share:.2f}" for label, share in zip(labels, shares, strict=False))


def score(value: float, comparison: Comparison, *, sign: bool = False) -> str:
    """Write a score, or with a sign a difference of two, with enough decimals to tell small scores apart."""
    largest = max(abs(comparison.original), abs(comparison.chosen))
    decimals = 3 if largest >= 0.01 or not largest else 2 - math.floor(math.log10(largest))
    return f"{value:{'+' * sign}.{decimals}f}"


def _cost(report: Report) -> str:
    return "" if report.cost is None else f", {dollars(report.cost)}"


def claims(report: Report) -> list[str]:
    """Say what was spent, what both programs come to, how sure the gain is, and how to load the result."""
    stays, effect = original_stays(report), report.calibration
    notes = {"of them from log_dir": report.program_calls.get("resumed", 0)}
    for what, outcome in (("failed", FAILED), ("with a reply that could not be read", WRONG)):
        notes[what] = sum(error.count for error in report.errors if error.outcome == outcome)
    noted = ", ".join(f"{number:,} {what}" for what, number in notes.items() if number)
    calls = f"{report.program_calls['total']:,} program calls{f' ({noted})' if noted else ''}{_cost(report)}"
    calibrated = effect is not None and effect.applied
    ended = report.comparison is None and report.stop_reason in (StopReason.INTERRUPTED, StopReason.ERROR)
    name = "best so far" if ended else "returned program, calibrated" if calibrated else "returned program"
    stopped = "as many calls as so few examples are worth" if _has_all_useful(report) else report.stopped
    header = f"{report.settings.get('method', 'PLReorder')}: {calls}, {report.seconds:.0f} s; {stopped}"
    lines = [
        "\n".join([*_unread(report), header]),
        _program("your program", report, returned=False),
        *([] if stays else [_program(name, report, returned=True)]),
        *_verdict(report),
        *_yardsticks(report),
    ]
    if effect is not None and calibrated:
        assumed = f"labels are as frequent as {_shares(report, effect)}"
        if not effect.shares:
            assumed = "nothing of how frequent labels are; the likeliest one is the answer"
        lines.append(f"assumed: {assumed}; the program needs the probabilities of labels at each use")
    elif effect is not None:
        answered = 1.0 - report.original.num_failed / max(1, report.original.num_calls)
        alone = answered * effect.original_calibrated
        metric = str(report.settings.get("metric"))
        by = f"(metric={metric})" * ("(" in metric)  # as metrics over a set are written
        if report.settings.get("calibrate"):
            if stays and effect.original_calibrated > effect.original:
                found = f"{effect.original:.2f} as it is, and {effect.original_calibrated:.2f} calibrated"
                lines.append(f"by its few calls, your program scores {found}: BatchCalibration{by} asks for 64 more")
        elif alone > max(effect.original, effect.chosen):
            constant = report.constant
            beside = "" if constant is None else f" ({constant.name} {constant.score:.2f})"
            lines.append(
                f"calibration alone, which needs no search, is expected to score {alone:.2f}{beside}, which is more: "
                f"use BatchCalibration{by}, or calibrate=True for an {noun(report)} that is chosen under it"
            )
    of_metric = any(error.message.startswith("in the metric:") for error in report.errors)
    if stays and report.original.num_failed > report.original.num_calls / 2 and not of_metric:
        lines.append("most of its calls gave no answer (see the details): give it demos, or another adapter or model")
    lines += [*_numbers_of_demos(report), *_labels_of_demos(report), *_retrieval(report)]
    if not stays and (report.comparison is not None or report.retrieves):
        lines.append(KEEP)
    return lines


def _unread(report: Report) -> list[str]:
    """Say first of all that many replies of a program cannot be read: no score tells that as clearly."""
    programs = {"your program": report.original}
    if not original_stays(report):
        programs["the returned program"] = report.returned
    lines = []
    for name, state in programs.items():
        if _mostly_unread(state):
            share = 100 * state.num_unread / state.num_calls
            lines.append(
                f"{state.num_unread} of {state.num_calls} replies of {name} cannot be read ({share:.0f} %): they count "
                "as wrong; another adapter, or demos, may help"
            )
    return lines


def _mostly_unread(state: ProgramState) -> bool:
    """Tell whether so many replies of a program cannot be read that this comes before any score."""
    return state.num_unread > 0 and state.num_unread >= MANY_UNREAD * state.num_calls


def _stays(report: Report) -> str:
    """Say that the user's program stays, and if it is a broken one, how broken."""
    return f"the {original_name(report)} stays{_although_unread(report)}"


def _although_unread(report: Report) -> str:
    """Return what to add to a sentence that says that the user's program stays."""
    state = report.original
    if not _mostly_unread(state):
        return ""
    return f", although {state.num_unread} of its {state.num_calls} replies cannot be read"


def _yardsticks(report: Report) -> list[str]:
    """Say what simpler ways score, and where the program is no better than one of them."""
    c = report.comparison
    simpler = [alternative for alternative in (report.random, report.constant) if alternative is not None]
    if c is None or not simpler:
        return []
    scores, _ = scores_of_both(c)
    stays = original_stays(report)
    own_score = scores[0 if stays else 1][0]
    phrases = []
    rivals = []
    possible_rivals = []
    for alternative in simpler:
        phrase = f"{alternative.name} {score(alternative.score, c)}"
        lowest = alternative.score
        if alternative.interval is not None:
            lowest, highest = alternative.interval
            phrase += f" [{score(lowest, c)}, {score(highest, c)}]"
        phrases.append(phrase)
        hair = 0.01 * max(abs(own_score), abs(alternative.score))
        if own_score <= lowest + hair:
            rivals.append(alternative.name)
        elif own_score <= alternative.score + hair:
            possible_rivals.append(alternative.name)
    name = "your program" if stays else "the returned program"
    lines = [f"for comparison, without any call: {', '.join(phrases)}"]
    if rivals:
        lines.append(f"{name} is no better than {' or '.join(rivals)}")
    if possible_rivals:
        lines.append(f"{name} may be no better than {' or '.join(possible_rivals)}")
    return lines


def _has_all_useful(report: Report) -> bool:
    """Whether so few examples have no use for a larger budget: it would be cut to the same number of calls."""
    most = report.settings.get("most_useful_calls", math.inf)
    if report.comparison is None or report.stop_reason is not StopReason.BUDGET:
        return False
    return bool((report.settings.get("max_metric_calls") or 0) >= most)


def _program(name: str, report: Report, *, returned: bool) -> str:
    """Say what your program or the returned one scores, what it shows, and how many calls gave no score."""
    c, state, parts = report.comparison, report.returned if returned else report.original, []
    if c is not None:
        (original, chosen), where = scores_of_both(c)
        value, low, high = (score(each, c) for each in (chosen if returned else original))
        interval = f" [{low}, {high}]" if where == EXPECTED else ""
        parts.append(f"score {value}{interval} {where}")
    tokens = "" if state.demo_tokens is None else f" ({state.demo_tokens:,} tokens)"
    parts.append(f"{count(state.num_demos, 'demo')}{tokens}")
    if state.num_calls:
        calibrated = returned and report.calibration is not None and report.calibration.applied
        before = " before calibration" * calibrated
        unscored = f", {state.num_failed} of them without an answer to score{before}" * (state.num_failed > 0)
        parts.append(f"{count(state.num_calls, 'call')}{unscored}")
    return f"{name}: {', '.join(parts)}"


def _verdict(report: Report) -> list[str]:
    """Say what is gained on new examples, how sure that is, and what would make it surer."""
    c, name, what = report.comparison, original_name(report), noun(report)
    if report.settings.get("scored_on", "train examples") != "train examples":
        if c is None:
            return ["chosen by label probabilities; not compared with the original order"]
        worse = ": on these it is worse than the original one" * (c.gain < 0)
        return [f"the order was chosen by its label probabilities, not by these examples{worse}"]
    if c is None and report.retrieves and not report.history:
        return ["no call was made: this variation needs no search, and its gain is not known"]
    if c is None and report.evidence is not None:
        return [_stays(report), *_advice(report)]
    if c is None:
        ended = report.stop_reason in AS_PLANNED
        said = f"nothing was compared with the {name}, which stays{_although_unread(report)}"
        if report.history:
            best = f"the best {what} is estimated to score {report.history[-1].best_score_so_far:.3f}"
            said = f"not compared with the {name}; {best} on train examples"
        going_on = "with log_dir, the same compile goes on from here; without, the next one begins anew"
        return [said, *([] if ended else [going_on])]
    if not original_stays(report):
        gain, low, high = (score(value, c, sign=True) for value in (c.expected_gain, *c.gain_interval))
        sure, p = c.probability >= MIN_WIN_PROBABILITY, f"better with probability {c.probability:.2f}"
        chance = f"may be chance ({p}, worse with {c.probability_worse:.2f})"
        claim = f"gain {gain} [{low}, {high}] {EXPECTED}, {p if sure else chance}"
        return [claim, *([] if sure else _advice(report))]
    other = max(report.candidates[1:], key=lambda candidate: candidate.expected_gain, default=None)
    by_score = not report.settings.get("racing", True)
    if by_score and all(each.score <= c.original for each in report.candidates[1:]):
        claim = f"no {what} scored better on these examples"
    elif other is None or other.expected_gain <= 0:
        claim = f"no {what} is expected to do better on new examples"
    else:
        gain, given = score(other.expected_gain, c, sign=True), report.settings.get("min_probability")
        short = "it must be 3 times as likely to be better" if given is None else f"less than min_probability={given:g}"
        claim = (
            f"the best other {what} is expected to gain {gain} on new examples, better with probability "
            f"{math.floor(100 * other.probability) / 100:.2f}, worse with {other.probability_worse:.2f}: {short}"
        )
    return [f"{_stays(report)}: {claim}", *_advice(report)]


def _advice(report: Report) -> list[str]:
    """Say what was short: calls, examples, or a difference that could be found."""
    evidence, settings, what = report.evidence, report.settings, noun(report)
    if evidence is None or not evidence.num_met:  # The search ended before two of them met.
        return []
    racing, met = bool(settings.get("racing")), evidence.num_met
    # A method without a race compares on the selection split alone.
    usable = settings.get("num_selection", 0) + racing * settings.get("num_train", 0)
    enough = ENOUGH_COMPARED * usable
    seen = (
        f"the original and the most promising other {what} were both scored on {evidence.num_compared} of {usable} "
        "examples"
    )
    if not evidence.num_differing:
        seen = f"{met} of {usable} examples were scored in two {what}s, and none differently"
        if racing and met >= min(ENOUGH_TO_GIVE_UP, enough):
            return [f"{seen}: the demos may not matter here; if they should, check that they reach the model"]
    if not racing or evidence.num_compared >= enough or _has_all_useful(report):
        return [f"{seen}: only further examples, in the trainset or as a valset, would tell more"]
    if report.stop_reason is not StopReason.BUDGET:
        return [f"{seen}: the search was ended early ({report.stopped})"]
    examples = " and more examples" * (usable < FEW_EXAMPLES)
    first = "see whether answers can be read, and score at all (dspy.inspect_history()); if so, "
    return [
        f"{seen}: {first * (not evidence.num_differing)}a larger budget (max_metric_calls){examples} would tell more"
    ]


def _calibration(report: Report) -> list[str]:
    """Say what calibration does to both programs."""
    if (effect := report.calibration) is None:
        return []
    was, calibrated = f"{effect.original:.2f}", f"{effect.original_calibrated:.2f}"
    said = f"expected: {original_name(report)} {was} as it is, {calibrated} calibrated"
    if not original_stays(report):
        before = "" if effect.applied else f"{effect.chosen:.2f} as it is, "
        said += f"; the chosen {noun(report)} {before}{effect.chosen_calibrated:.2f} calibrated"
    if report.constant is not None:
        constant = report.constant
        said += f"; {constant.name} {constant.score:.2f} (on {constant.num_examples} examples)"
    if effect.shares:
        return [said, f"calibration is to these shares of labels: {_shares(report, effect)}"]
    return [said, "calibration takes the likeliest label as it is, which scores more than with any shares"]


def _shares(report: Report, effect: CalibrationEffect) -> str:
    """Write the shares that answers are calibrated to, and which examples they come from."""
    shares = shares_by_label(_labels(report), effect.shares)
    is_given = isinstance(report.settings.get("calibrate"), dict)
    is_even = len(set(effect.shares)) == 1
    num_scored = report.settings.get("num_train", 0) + report.settings.get("num_selection", 0)
    if is_given or is_even or not num_scored:
        return shares
    return f"{shares} (from the labels of {num_scored} examples that score)"


def _labels_of_demos(report: Report) -> list[str]:
    """Say where all demos of a predictor have the same label, although the examples have several."""
    lines = []
    for slot in report.slots:
        owner = f" of {slot.predictor}" if len(report.slots) > 1 else ""
        for label in slot.only_labels.values():
            lines.append(f"all {len(slot.ordering)} demos{owner} have the label {label!r}")
    return lines


def _labels(report: Report) -> list[str]:
    return [] if report.signal is None else report.signal.labels


def _numbers_of_demos(report: Report) -> list[str]:
    """Say which numbers of demos score otherwise than the chosen one beyond chance, and which may score as much."""
    chosen = report.chosen_of_number
    if chosen is None or chosen.interval is None:
        return []
    found: dict[str, list[str]] = {"worse beyond chance": [], "better beyond chance": [], "may be as good": []}
    for other in report.best_by_number:
        if other is chosen or other.interval is None:
            continue
        gap, gain = other.score - chosen.score, report.comparison
        before = gain.expected_original[0] if gain is not None and gain.expected_original else other.score
        if not (other.num_demos or report.original.num_demos or gain is None) and round(other.score - before, 3) <= 0:
            # No demos are the program as it was, over which the gain is known, unless calibration makes it better.
            better, sure = False, gain.probability >= MIN_WIN_PROBABILITY
        else:
            # The ends of both intervals that lie between the scores; each is independent of the other, or wider.
            ends = (other.interval[gap < 0] - other.score, chosen.interval[gap > 0] - chosen.score)
            better, sure = gap > 0, abs(gap) > math.hypot(*ends)
        kind = f"{'better' if better else 'worse'} beyond chance" if sure else "may be as good"
        found[kind].append(f"{other.num_demos}{f' ({gap:+.3f})' * sure}")
    parts = [f"{kind}: {', '.join(numbers)}" for kind, numbers in found.items() if numbers]
    calibrated = ", calibrated" * (report.calibration is not None and report.calibration.applied)
    return ["; ".join([f"numbers of demos{calibrated}: {chosen.num_demos} chosen", *parts])]


def _retrieval(report: Report) -> list[str]:
    """Say what finds demos, what else there was, and whether a language model is needed at all."""
    lines, alternatives = [], []
    if (found := report.retrieval) is not None:
        if found.variation is not None:
            pooled = f"the file of the program holds all {found.num_pooled:,} of the pool"
            lines.append(f"demos: {found.variation} ({found.text}); {pooled}")
        for each in found.alternatives:
            some = "all" if each.found_tokens == each.tokens else f"{each.found_tokens:,}"
            moving = f", {some} of which differ by input" if each.found_tokens else ""
            cost = "" if each.cost is None else f", {dollars(each.cost)} for 1,000 predictions"
            alternatives.append(f"{each.name} {each.score:.3f} ({each.tokens:,} tokens{moving}{cost})")
    if alternatives:
        lines.append(f"{EXPECTED}: {', '.join(alternatives)}")
    c = report.comparison
    if (vote := report.vote) is not None:
        told = f"{vote.name} {vote.score:.3f} on {vote.num_examples} examples"
        if c is not None and c.expected_chosen and vote.score >= max(c.expected_chosen[0], c.chosen):  # It is shrunk.
            shown = "try demos='retrieved' with max_metric_calls=0, which shows them and makes no call"
            lines.append(f"{told}: {'a language model may not be needed here' if alternatives else shown}")
        elif found is not None:
            lines.append(told)
    return lines

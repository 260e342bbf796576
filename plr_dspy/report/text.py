"""The text of a report: the lines of `print(report)` and of `report.details()`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from plr_dspy.report.schema import (
    AS_GOOD,
    Alternative,
    Comparison,
    FrontEntry,
    InstructionReport,
    ProgramState,
    ReportData,
    SlotReport,
)
from plr_dspy.report.stop import StopReason

MIN_WIN_PROBABILITY = 0.9  # below this probability of a gain, it "may be chance"
ENOUGH_COMPARED = 0.8  # If the original and its rival share this part of the examples, more calls would not help.
TOO_LONG = "ContextWindowExceededError"  # exception type if a prompt exceeds the context length
MANY_UNREAD = 0.1  # share of unparsable replies at which a report begins with a warning
FEW_EXAMPLES = 30  # With fewer examples, chance decides which order looks best.
FIELD_WIDTH = 40  # maximum number of characters to show of a field
TEXT_WIDTH = 100  # maximum number of characters to show of an instruction
PROPOSED = "proposed["  # first part of the origins of proposed instructions
# Outcomes of calls without a score.
WRONG = "counted as wrong"
FAILED = "not scored"
KEEP = 'save it: program.save("program.json"); load it: plr_dspy.load_program(student, "program.json")'


def count(number: int, noun: str) -> str:
    """Format a number with its noun, such as "3 demos"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def dollars(cost: float) -> str:
    """Format US dollars to the cent; below ten cents, to two significant digits."""
    decimals = 2
    if 0 < cost < 0.1:
        decimals = 1 - math.floor(math.log10(cost))
    return f"${cost:,.{decimals}f}"


def shorten(text: str, width: int) -> str:
    """Shorten a text to at most `width` characters."""
    if len(text) <= width:
        return text
    return text[: width - 1].rstrip() + "…"


def shares_by_label(labels: Sequence[str], shares: Iterable[float]) -> str:
    """Format labels with their shares."""
    return ", ".join(f"{label!r} {share:.2f}" for label, share in zip(labels, shares, strict=False))


def score_text(score: float, *interval: float, sign: str = "") -> str:
    """Format a score and its interval, if any; pass `sign="+"` for a difference."""
    # The sum with 0.0 is never -0.0.
    text = f"{round(score, 3) + 0.0:{sign}.3f}"
    if interval:
        text += f" [{', '.join(f'{round(end, 3) + 0.0:{sign}.3f}' for end in interval)}]"
    return text


def method(report: ReportData) -> str:
    """Return the name of the optimizer."""
    return str(report.settings.get("method", "PLReorder"))


def result(report: ReportData) -> str:
    """Describe the result of a compile and its cost in one line."""
    verdict = next(_verdict(report), "")
    if report.comparison is not None and not report.original_stays:
        verdict = f"gain {_gain(report.comparison)}"
    return f"{verdict}; {count(report.program_calls['total'], 'call')}{_cost(report)}; {report.stopped}"


def summary(report: ReportData) -> Iterator[str]:
    """Yield the lines of `print(report)`."""
    yield from _unread_replies(report)
    yield from _long_prompts(report)
    yield from _unusable_proposals(report)
    yield _header(report)
    yield from _scores(report)
    yield from _programs(report)
    yield from _verdict(report)
    yield from _rivals(report)
    for instruction in report.other_instructions:
        chosen = instruction.alternatives[instruction.chosen]
        yield f"instruction of {instruction.predictor} ({chosen.origin}): {_one_line(chosen.text)}"
    yield from _calibration(report)
    yield from _cheaper_prompt(report)
    retrieval = report.retrieval
    if retrieval is not None and report.retrieves:
        yield f"demos are retrieved for each input: {retrieval.text}; all {retrieval.num_pooled:,} are saved with it"
    if not report.original_stays and (report.comparison is not None or report.retrieves):
        yield _how_to_keep(report)


def _how_to_keep(report: ReportData) -> str:
    """Say how to save and load the returned program; a program of the user is loaded into one of its class."""
    if report.returned.name:
        return f"{KEEP}, with {report.returned.name!r} as the student"
    return KEEP


def _unread_replies(report: ReportData) -> Iterator[str]:
    """Warn if many replies cannot be parsed, which scores alone do not show."""
    programs = {"your program": report.original}
    if not report.original_stays:
        programs["the returned program"] = report.returned
    for name, state in programs.items():
        if state.num_unread and state.num_unread >= MANY_UNREAD * state.num_calls:
            percent = 100 * state.num_unread / state.num_calls
            yield (
                f"{state.num_unread} of {state.num_calls} replies of {name} could not be parsed ({percent:.0f} %) and "
                "count as wrong: try another adapter, or demos"
            )


def _long_prompts(report: ReportData) -> Iterator[str]:
    """Warn if many prompts exceed the context length, because they count as wrong answers."""
    number = sum(error.count for error in report.errors if error.type == TOO_LONG)
    if number and number >= MANY_UNREAD * report.program_calls["total"]:
        yield (
            f"{number} of {report.program_calls['total']} prompts exceeded the model's context length and count as "
            "wrong: use fewer demos; or raise the server's context length, and repeat these calls by compiling with "
            "the same log_dir and accept_changes=True"
        )


def _unusable_proposals(report: ReportData) -> Iterator[str]:
    """Warn if no proposed instruction took part, because the compile then chose among demos alone."""
    if report.proposals is None:
        return
    used = [instruction for part in report.instructions for instruction in part.alternatives]
    if any(instruction.origin.startswith(PROPOSED) for instruction in used):
        return
    dropped = [instruction for part in report.instructions for instruction in part.dropped]
    numbers = Counter(instruction.reason for instruction in dropped if instruction.origin.startswith(PROPOSED))
    reasons = "; ".join(f"{count(number, 'text')}: {reason}" for reason, number in numbers.items())
    yield (
        f"no proposed instruction could be used ({reasons or 'none was made'}): try another prompt_model, or pass "
        "instructions as a list"
    )


def _header(report: ReportData) -> str:
    """Describe the calls, the cost, the time and the reason to stop."""
    notes = {
        "of them from log_dir": report.program_calls.get("resumed", 0),
        "failed": 0,
        "too long": 0,
        "unreadable": 0,
    }
    for error in report.errors:
        if error.type == TOO_LONG:
            notes["too long"] += error.count
        elif error.outcome == FAILED:
            notes["failed"] += error.count
        elif error.outcome == WRONG:
            notes["unreadable"] += error.count
    note_text = ", ".join(f"{number:,} {note}" for note, number in notes.items() if number)
    calls = count(report.program_calls["total"], "program call")
    if note_text:
        calls += f" ({note_text})"
    return f"{method(report)}: {calls}{_cost(report)}, {report.seconds:.0f} s; {report.stopped}"


def _cost(report: ReportData) -> str:
    if report.cost is None:
        return ""
    return f", {dollars(report.cost)}"


def _scores(report: ReportData) -> Iterator[str]:
    """Yield a table of the scores of both programs and of simpler methods."""
    comparison = report.comparison
    rows = {}
    title = "for comparison:"
    if comparison is not None:
        title = f"scores on {count(comparison.num_examples, 'example')}:"
        if comparison.expected_chosen is not None:
            title = "scores expected on new examples, with 95 % intervals:"
        original = comparison.expected_original or (comparison.original,)
        rows[f"{_named('your program', report.original)}, {_demos_of(report.original)}"] = score_text(*original)
        if not report.original_stays:
            name = f"{_named('returned program', report.returned)}, {_demos_of(report.returned)}"
            if report.other_instructions:
                name += ", another instruction"
            if report.is_calibrated:
                name += ", calibrated"
            rows[name] = score_text(*(comparison.expected_chosen or (comparison.chosen,)))
            if comparison.expected_chosen is not None:
                rows["gain"] = _gain(comparison)
    for rival in _simpler_methods(report):
        rows[rival.name] = score_text(rival.score, *(rival.interval or ()))
    if rows:
        yield title
        yield from _table(rows)


def _named(text: str, state: ProgramState) -> str:
    """Add the name of a program that the user passed, if it is one."""
    return f"{text} {state.name!r}" if state.name else text


def _programs(report: ReportData) -> Iterator[str]:
    """List the programs that the user passed."""
    if report.programs:
        yield "programs, best first:"
        rows = {}
        for way in report.programs:
            score = score_text(way.score, *(way.interval or ()))
            rows[f"{way.name}, {count(way.num_demos, 'demo')}"] = f"{score} by {count(way.num_examples, 'example')}"
        yield from _table(rows)


def _table(rows: dict[str, str]) -> Iterator[str]:
    names = [" ".join(name.split()) for name in rows]  # Names of users may have several lines.
    width = max(map(len, names))
    for name, text in zip(names, rows.values(), strict=True):
        yield f"  {name:<{width}}  {text}"


def _demos_of(state: ProgramState) -> str:
    text = count(state.num_demos, "demo")
    if state.demo_tokens:
        text += f" ({state.demo_tokens:,} tokens)"
    return text


def _gain(comparison: Comparison) -> str:
    gain = score_text(comparison.expected_gain, *comparison.gain_interval, sign="+")
    text = f"{gain}, better with probability {comparison.probability:.2f}"
    if comparison.probability < MIN_WIN_PROBABILITY:
        text += f", worse with {comparison.probability_worse:.2f}: may be chance"
    return text


def _simpler_methods(report: ReportData) -> list[Alternative]:
    return [rival for rival in (report.random, report.constant, report.vote) if rival is not None]


def _verdict(report: ReportData) -> Iterator[str]:
    """Explain why the original stays, and how to reduce the uncertainty."""
    comparison = report.comparison
    if report.settings.get("scored_on", "train examples") != "train examples":
        yield "the order was chosen by its label probabilities, not by these scores"
    elif comparison is None:
        if report.original_stays:
            yield "your program stays: nothing was compared with it"
        else:
            yield "nothing was compared with your program, so the gain is not known"
        yield from _advice(report)
    elif report.original_stays:
        yield f"your program stays: {_why_original_stays(report)}"
        yield from _advice(report)
    elif comparison.probability < MIN_WIN_PROBABILITY:
        yield from _advice(report)
    if report.stop_reason in (StopReason.INTERRUPTED, StopReason.ERROR):
        yield "with log_dir, the same compile resumes from here; without it, the next one starts anew"


def _why_original_stays(report: ReportData) -> str:
    noun = "order" if report.slots else "program"
    if any(instruction.alternatives for instruction in report.instructions):
        noun = "prompt"
    elif any(slot.origins for slot in report.slots):
        noun = "choice of demos"
    best = max(report.candidates[1:], key=lambda candidate: candidate.expected_gain, default=None)
    if best is None or best.expected_gain <= 0 or not report.settings.get("racing", True):
        return f"no other {noun} is expected to do better"
    probability = math.floor(100 * best.probability) / 100  # Round down, or it might seem to reach `min_probability`.
    return (
        f"the best other {noun} is expected to gain {best.expected_gain:+.3f}, but that is too uncertain (better "
        f"with probability {probability:.2f}, worse with {best.probability_worse:.2f})"
    )


def _advice(report: ReportData) -> Iterator[str]:
    """Advise how to reduce the uncertainty: with more calls or examples, or with demos that matter."""
    evidence = report.evidence
    settings = report.settings
    if report.stop_reason is StopReason.DECIDED:
        return
    if evidence is None or not evidence.num_met:  # No two orders were scored on the same example.
        return
    is_race = not settings.get("num_selection")
    if not evidence.num_differing and is_race:
        yield f"no score differed on {evidence.num_met} examples, so the programs are equally good there"
        return
    if not evidence.num_differing:
        yield (
            f"no score differed on {count(evidence.num_met, 'example')}, whatever the demos: check that the replies "
            "can be parsed and that the demos reach the model (dspy.inspect_history()); if so, the demos may not "
            "matter here"
        )
        return
    num_usable = settings.get("num_train", 0) + settings.get("num_selection", 0)
    budget = settings.get("max_metric_calls") or 0
    is_enough = evidence.num_compared >= ENOUGH_COMPARED * num_usable
    if is_enough or not settings.get("racing") or budget >= settings.get("most_useful_calls", math.inf):
        yield "only more examples, in trainset or valset, would reduce the uncertainty"
    else:
        yield "a larger budget (max_metric_calls) would reduce the uncertainty"


def _rivals(report: ReportData) -> Iterator[str]:
    """Name the simpler methods that score, or may score, at least as well as the program."""
    comparison = report.comparison
    if comparison is None:
        return
    name = "the returned program"
    own_score = comparison.chosen
    expected = comparison.expected_chosen
    if report.original_stays:
        name = "your program"
        own_score = comparison.original
        expected = comparison.expected_original
    if expected is not None:
        own_score = expected[0]
    names_by_verb: dict[str, list[str]] = {"is": [], "may be": []}
    for rival in _simpler_methods(report):
        lowest = rival.score
        if rival.interval is not None:
            lowest = rival.interval[0]
        margin = 0.01 * max(abs(own_score), abs(rival.score))
        if own_score <= lowest + margin:
            names_by_verb["is"].append(rival.name)
        elif own_score <= rival.score + margin:
            names_by_verb["may be"].append(rival.name)
    for verb, names in names_by_verb.items():
        if names:
            yield f"{name} {verb} no better than {' or '.join(names)}"


def _calibration(report: ReportData) -> Iterator[str]:
    """State what a calibrated program assumes, or advise calibration if it is expected to score higher."""
    effect = report.calibration
    if effect is None:
        return
    if effect.applied:
        assumption = "the likeliest label is the answer"
        if effect.shares and report.signal is not None:
            assumption = f"label shares are assumed to be {shares_by_label(report.signal.labels, effect.shares)}"
        yield f"calibrated: {assumption}; the program needs label probabilities at every call"
        return
    share_answered = 1.0 - report.original.num_failed / max(1, report.original.num_calls)
    calibrated_score = share_answered * effect.original_calibrated
    if calibrated_score > max(effect.original, effect.chosen) and not report.settings.get("calibrate"):
        optimizer = "BatchCalibration"
        metric = str(report.settings.get("metric"))
        if "(" in metric:  # Only metrics over a set have arguments, and `BatchCalibration` accepts them.
            optimizer += f"(metric={metric})"
        yield (
            f"your program, calibrated without a search, is expected to score {calibrated_score:.3f}: use {optimizer}, "
            "or calibrate=True to search with calibrated answers"
        )


def _cheaper_prompt(report: ReportData) -> Iterator[str]:
    """Name the cheapest prompt that is as good as the returned program's, if it is another one."""
    cheapest = next((entry for entry in report.front if entry.is_as_good), None)
    returned = next((entry for entry in report.front if entry.is_returned), None)
    if cheapest is None or returned is None or cheapest.is_returned:
        return
    yield (
        f"a cheaper prompt is probably as good, within {AS_GOOD}: {cheapest.name} ({_price(cheapest)} instead of "
        f"{_price(returned)}); build it: optimizer.program_with(within={AS_GOOD})"
    )


def _price(entry: FrontEntry) -> str:
    cost = "" if not entry.cost else f", {dollars(entry.cost)} per 1,000 predictions"
    return f"{entry.prompt_tokens:,} tokens{cost}"


def details(report: ReportData) -> Iterator[str]:
    """Yield the lines of `report.details()`: the summary, then the details."""
    yield from summary(report)
    settings = report.settings
    names = [*settings.get("models", []), settings.get("adapter"), settings.get("metric")]
    yield f"{', '.join(str(name) for name in names if name)}, seed {settings.get('seed')}"
    examples = f"examples: {settings.get('num_train')}"
    has_final = bool(settings.get("num_selection"))  # A race of programs has no final comparison.
    if has_final:
        examples += f" to search, {settings.get('num_selection')} for the final comparison"
    if settings.get("num_repeated"):
        examples += f"; {settings['num_repeated']} duplicates left out"
    yield examples
    yield f"calls: {', '.join(f'{phase} {number:,}' for phase, number in report.program_calls.items() if number)}"
    comparison = report.comparison
    if comparison is not None:
        gain = score_text(comparison.gain, *comparison.interval, sign="+")
        title = "final comparison alone" if has_final else "mean scores"
        yield (
            f"{title}: {comparison.original:.3f} -> {comparison.chosen:.3f} on "
            f"{count(comparison.num_examples, 'example')}, gain {gain} for the best of {comparison.num_candidates}"
        )
    signal = report.signal
    if signal is not None and signal.used != "score":
        yield "learnt from scores and label probabilities"
    elif signal is not None and signal.reason:
        yield f"learnt from scores alone: {signal.reason}"
    for slot in report.slots:
        yield from _demos(slot)
    if report.best_by_number:
        yield "best score for each number of demos:"
        yield from _table({count(best.num_demos, "demo"): _describe(best) for best in report.best_by_number})
    cheap = [entry for entry in report.undominated if entry.is_as_good]
    if cheap:
        yield f"cheapest prompts that are as good, within {AS_GOOD}:"
        yield from _table(
            {entry.name: f"{score_text(entry.score, *(entry.interval or ()))}, {_price(entry)}" for entry in cheap}
        )
    for instruction in report.instructions:
        yield from _instructions(instruction)
    proposals = report.proposals
    if proposals is not None:
        cost = "" if proposals.cost is None else f", {dollars(proposals.cost)}"
        calls = count(proposals.num_calls, "call")
        yield f"{count(proposals.num_texts, 'instruction')} proposed by {calls} of {proposals.model}{cost}"
    if report.retrieval is not None and report.retrieval.alternatives:
        yield "ways to show demos:"
        yield from _table({other.name: _describe(other) for other in report.retrieval.alternatives})
    for model, tokens in report.tokens.items():
        yield f"tokens of {model}: {', '.join(f'{number:,} {kind}' for kind, number in tokens.items())}"
    if report.new_prompt_tokens:
        yield f"prompt tokens that a server with a prefix cache reads anew: about {report.new_prompt_tokens:,}"
    for error in report.errors:
        calls = f"{count(error.count, 'call')} {error.outcome}"
        yield f"{calls}: {error.type}: {error.message} ({', '.join(error.examples)})"


def _demos(slot: SlotReport) -> Iterator[str]:
    """Yield the demos in a predictor's prompts, in order."""
    if not slot.ordering:
        yield f"{slot.predictor}: shows none of {count(slot.num_demos, 'demo')}"
        return
    num_shown = f"{len(slot.ordering)} of {count(slot.num_demos, 'demo')}"
    yield f"{slot.predictor}: {num_shown} in the order {slot.ordering}, the last next to the question"
    for number in slot.ordering:
        origin = ""
        if slot.origins:
            origin = f" ({slot.origins[number]})"
        fields = [
            f"{name}: {shorten(' '.join(value.split()), FIELD_WIDTH)}" for name, value in slot.demos[number].items()
        ]
        yield f"  demo {number}{origin}: {' | '.join(fields)}"


def _describe(alternative: Alternative) -> str:
    score = score_text(alternative.score, *(alternative.interval or ()))
    return f"{score} on {count(alternative.num_examples, 'example')}, {alternative.tokens:,} tokens"


def _instructions(report: InstructionReport) -> Iterator[str]:
    """List a predictor's instructions, with the score of the best prompt with each."""
    if report.alternatives:
        yield f"{report.predictor}: instruction {report.chosen} of {len(report.alternatives)}, best prompt with each:"
    for number, instruction in enumerate(report.alternatives):
        score = "not scored"
        if instruction.score is not None:
            score = score_text(instruction.score, *(instruction.interval or ()))
            score += f" on {count(instruction.num_examples, 'example')}"
        yield f"  instruction {number} ({instruction.origin}): {score}: {_one_line(instruction.text)}"
    for unused in report.dropped:
        yield f"  not used ({unused.origin}): {unused.reason}: {_one_line(unused.text)}"


def _one_line(text: str) -> str:
    return shorten(" ".join(text.split()), TEXT_WIDTH)

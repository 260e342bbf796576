"""The text of a report: the lines of `print(report)` and of `report.details()`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from plr_dspy.report.schema import (
    AS_GOOD,
    Alternative,
    Candidate,
    Comparison,
    FrontEntry,
    InstructionReport,
    ProgramState,
    ReportData,
    SlotReport,
)
from plr_dspy.report.stop import StopReason

# If the probability of a gain is lower than this, the report says that the gain may be chance.
MIN_WIN_PROBABILITY = 0.9
# If two programs were scored on at least this share of the examples, more calls would not help.
ENOUGH_COMPARED = 0.8
TOO_LONG = "ContextWindowExceededError"  # exception type if a prompt exceeds the context length
# A cheaper prompt is reported only if it was scored on at least `MIN_SCORED` examples, and has
# at most the share `MUCH_CHEAPER` of the returned prompt's tokens.
MIN_SCORED = 20
MUCH_CHEAPER = 0.95
# For each reason why a search ended, the argument to increase.
LIMITS = {StopReason.COST: "max_cost", StopReason.TIME: "max_seconds"}
MANY_UNREAD = 0.1  # share of unparsable replies at which a report begins with a warning
FEW_EXAMPLES = 30  # number of examples below which chance decides which order looks best
FIELD_WIDTH = 40  # maximum number of characters shown per field
MAX_CLASSES = 10  # maximum number of classes to name
TEXT_WIDTH = 100  # maximum number of characters shown per instruction
MORE_EXAMPLES = "only more examples, in trainset or valset, would reduce the uncertainty"
PROPOSED = "proposed["  # prefix of the origins of proposed instructions
# Outcomes of calls without a score.
WRONG = "counted as wrong"
FAILED = "not scored"


def count(number: int, noun: str) -> str:
    """Format a number with its noun, such as "3 demos"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


def dollars(cost: float) -> str:
    """Format an amount in US dollars.

    Round the amount to cents or, below ten cents, to two significant digits.
    """
    decimals = 2
    if 0 < cost < 0.1:
        decimals = 1 - math.floor(math.log10(cost))
    return f"${cost:,.{decimals}f}"


def shorten(text: str, width: int) -> str:
    """Shorten `text` to at most `width` characters."""
    if len(text) <= width:
        return text
    return text[: width - 1].rstrip() + "…"


def shares_by_label(labels: Sequence[str], shares: Iterable[float]) -> str:
    """Format labels with their shares."""
    return ", ".join(f"{label!r} {share:.2f}" for label, share in zip(labels, shares, strict=False))


def score_text(score: float, *interval: float, sign: str = "") -> str:
    """Format a score and its interval, if any. For a difference, pass `sign="+"`."""
    # Adding 0.0 turns -0.0 into 0.0.
    text, *ends = (f"{round(number, 3) + 0.0:{sign}.3f}" for number in (score, *interval))
    return f"{text} [{', '.join(ends)}]" if ends else text


def method(report: ReportData) -> str:
    """Return the name of the optimizer."""
    return str(report.settings.get("method", "PLReorder"))


def result(report: ReportData) -> str:
    """Describe the result and the cost of a compile run in one line."""
    verdict = next(_verdict(report), "")
    if report.comparison is not None and not report.original_stays:
        verdict = f"{_name_of_gain(report)} {_gain(report.comparison)}"
    return f"{verdict}; {count(report.program_calls['total'], 'call')}{_cost(report)}; {report.stopped}"


def summary(report: ReportData) -> Iterator[str]:
    """Yield the lines of `print(report)`."""
    yield from _unread_replies(report)
    yield from _truncated_replies(report)
    yield from _long_prompts(report)
    yield from _unusable_proposals(report)
    yield _header(report)
    yield from _scores(report)
    yield from _programs(report)
    yield from _verdict(report)
    yield from _rivals(report)
    for instruction in report.other_instructions:
        chosen = instruction.alternatives[instruction.chosen]
        yield f"instruction for {instruction.predictor} ({chosen.origin}): {_one_line(chosen.text)}"
    yield from _scarce_classes(report)
    yield from _calibration(report)
    yield from _cheaper_prompt(report)
    retrieval = report.retrieval
    if retrieval is not None and report.retrieves:
        yield f"retrieved demos: {retrieval.text}; all {retrieval.num_pooled:,} are saved with the program"
    if not report.original_stays and (report.comparison is not None or report.retrieves):
        text = "save it with program.save, and load it with plr_dspy.load_program"
        if report.returned.name:
            text += f", to which you pass a student built like {report.returned.name!r}"
        yield text


def _programs_by_name(report: ReportData) -> dict[str, ProgramState]:
    """Return the student and, if another program is returned, that program.

    The keys are the names of these programs in the text.
    """
    programs = {"your program": report.original}
    if not report.original_stays:
        programs["the returned program"] = report.returned
    return programs


def _are_many(num_replies: int, state: ProgramState) -> bool:
    """Return whether this number of a program's replies is large enough for a warning."""
    return num_replies > 0 and num_replies >= MANY_UNREAD * state.num_calls


def _unread_replies(report: ReportData) -> Iterator[str]:
    """Warn if many replies cannot be parsed."""
    for name, state in _programs_by_name(report).items():
        if _are_many(state.num_unread, state):
            percent = 100 * state.num_unread / state.num_calls
            yield (
                f"{state.num_unread} of {state.num_calls} replies of {name} could not be parsed ({percent:.0f}%) and "
                "count as wrong: try another adapter, or add demos"
            )


def _truncated_replies(report: ReportData) -> Iterator[str]:
    """Warn if many replies were cut off at the maximum number of tokens."""
    for name, state in _programs_by_name(report).items():
        if _are_many(state.num_truncated, state):
            percent = 100 * state.num_truncated / state.num_calls
            yield (
                f"{state.num_truncated} of {state.num_calls} replies of {name} were cut off at max_tokens "
                f"({percent:.0f}%): increase the language model's max_tokens"
            )


def _long_prompts(report: ReportData) -> Iterator[str]:
    """Warn if many prompts exceed the context length."""
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


def _header(report: ReportData) -> str:
    """Describe the calls, the cost, the time and the reason to stop."""
    numbers = Counter({"of them from log_dir": report.program_calls.get("resumed", 0)})
    notes = {FAILED: "failed", WRONG: "unreadable"}
    for error in report.errors:
        note = "too long" if error.type == TOO_LONG else notes.get(error.outcome)
        if note is not None:
            numbers[note] += error.count
    note_text = ", ".join(f"{number:,} {note}" for note, number in numbers.items() if number)
    calls = count(report.program_calls["total"], "program call")
    if note_text:
        calls += f" ({note_text})"
    return f"{method(report)}: {calls}{_cost(report)}, {report.seconds:.0f} s; {report.stopped}"


def _cost(report: ReportData) -> str:
    return f", {dollars(report.cost)}" if report.cost else ""


def _scores(report: ReportData) -> Iterator[str]:
    """Yield a table with the scores of the student, the returned program and simpler methods."""
    comparison = report.comparison
    rows = {}
    title = "for comparison:"
    if comparison is not None:
        title = "scores expected on new examples, with 95% intervals:"
        rows[_described("your program", report.original)] = score_text(*comparison.expected_original)
        if not report.original_stays:
            name = _described("returned program", report.returned)
            if report.other_instructions:
                name += ", another instruction"
            if report.is_calibrated:
                name += ", calibrated"
            rows[name] = score_text(*comparison.expected_chosen)
            rows[_name_of_gain(report)] = _gain(comparison)
        over_best_own = report.over_best_own
        if over_best_own is not None:
            rows[f"gain over {over_best_own.name!r}"] = _gain(over_best_own)
    for rival in _simpler_methods(report):
        rows[rival.name] = _score_of(rival)
    if rows:
        yield title
        yield from _table(rows)


def _described(text: str, state: ProgramState) -> str:
    """Append a program's name, if it has one, and its number of demos to a description."""
    name = f" {state.name!r}" if state.name else ""
    tokens = f" ({state.demo_tokens:,} tokens)" if state.demo_tokens else ""
    return f"{text}{name}, {count(state.num_demos, 'demo')}{tokens}"


def _score_of(scored: Alternative) -> str:
    return score_text(scored.score, *(scored.interval or ()))


def _score_on(scored: Alternative) -> str:
    return f"{_score_of(scored)} on {count(scored.num_examples, 'example')}"


def _programs(report: ReportData) -> Iterator[str]:
    """List the user's programs with their scores."""
    rows = {}
    for program in report.programs:
        rows[f"{program.name}, {count(program.num_demos, 'demo')}"] = _score_on(program)
    if rows:
        yield "programs, best first:"
        yield from _table(rows)


def _table(rows: dict[str, str]) -> Iterator[str]:
    names = [" ".join(name.split()) for name in rows]  # Users' names may contain line breaks.
    width = max(map(len, names))
    for name, text in zip(names, rows.values(), strict=True):
        yield f"  {name:<{width}}  {text}"


def _name_of_gain(report: ReportData) -> str:
    """Return the word for the change in score, which is "gain" or "difference".

    It is "difference" if one of the user's other programs is returned without a likely gain.
    """
    comparison = report.comparison
    is_better = comparison is not None and comparison.probability >= MIN_WIN_PROBABILITY
    return "gain" if is_better or not report.returns_own else "difference"


def _gain(comparison: Comparison) -> str:
    gain = score_text(comparison.expected_gain, *comparison.gain_interval, sign="+")
    text = f"{gain}, better with probability {comparison.probability:.2f}"
    if comparison.probability < MIN_WIN_PROBABILITY:
        text += f", worse with {comparison.probability_worse:.2f}: may be chance"
    return text


def _simpler_methods(report: ReportData) -> list[Alternative]:
    return [rival for rival in (report.random, report.constant, report.vote) if rival is not None]


def _verdict(report: ReportData) -> Iterator[str]:
    """Say why the original is kept or why the gain is not known, and how to reduce the uncertainty."""
    comparison = report.comparison
    if report.settings.get("scored_on", "train examples") != "train examples":
        yield "the order was chosen according to label probabilities, so its score is not known"
    elif report.original_stays:
        yield f"your program is kept: {_why_original_is_kept(report)}"
        yield from _advice(report)
    elif comparison is None:
        yield "nothing was compared with your program, so the gain is not known"
        yield from _advice(report)
    elif comparison.probability < MIN_WIN_PROBABILITY:
        yield from _advice(report)
    if report.stop_reason in (StopReason.INTERRUPTED, StopReason.ERROR):
        yield "if log_dir is set, compile again with the same arguments to resume"


def _why_original_is_kept(report: ReportData) -> str:
    if report.comparison is None:
        return "nothing was compared with it"
    best = _best_other(report)
    if best is None or not report.settings.get("racing", True):
        return "no other program is expected to do better"
    # Round down, so that the probability does not seem to reach `min_probability`.
    probability = math.floor(100 * best.probability) / 100
    return (
        f"the best other program is expected to gain {best.expected_gain:+.3f}, but this is too uncertain (better "
        f"with probability {probability:.2f}, worse with {best.probability_worse:.2f})"
    )


def _best_other(report: ReportData) -> Candidate | None:
    """Return the program with the largest expected gain over the original.

    Return None if no program is expected to gain.
    """
    best = max(report.candidates[1:], key=lambda candidate: candidate.expected_gain, default=None)
    return best if best is not None and best.expected_gain > 0 else None


def _advice(report: ReportData) -> Iterator[str]:
    """Say how to reduce the uncertainty."""
    evidence = report.evidence
    settings = report.settings
    # If `num_met` is 0, no two orders were scored on the same example, so there is no advice yet.
    if evidence is None or not evidence.num_met:
        return
    if report.stop_reason is StopReason.DECIDED:
        # The race ended before its budget was used up, so only more examples can reduce the
        # uncertainty.
        if _best_other(report) is not None:
            yield MORE_EXAMPLES
        return
    num_selection = settings.get("num_selection", 0)
    racing = settings.get("racing")
    if not evidence.num_differing and (racing or report.comparison is None):
        text = f"no score differed on {count(evidence.num_met, 'example')}"
        if num_selection:  # A race of programs has no selection split.
            text += (
                ": check that replies can be parsed, and with dspy.inspect_history() that the demos reach the model; "
                "if so, the demos may not matter"
            )
        yield text
        return
    num_usable = settings.get("num_train", 0) + num_selection
    budget = settings.get("max_metric_calls") or 0
    is_enough = evidence.num_compared >= ENOUGH_COMPARED * num_usable
    if is_enough or not racing or budget >= settings.get("most_useful_calls", math.inf):
        yield MORE_EXAMPLES
    else:
        limit = LIMITS.get(report.stop_reason, "max_metric_calls")
        yield f"a larger budget ({limit}) would reduce the uncertainty"


def _rivals(report: ReportData) -> Iterator[str]:
    """Name the simpler methods that the returned program does not beat by more than 1%."""
    if report.comparison is None:
        return
    own_score = report.comparison.expected_chosen[0]
    names = []
    for rival in _simpler_methods(report):
        if own_score <= rival.score + 0.01 * max(abs(own_score), abs(rival.score)):
            names.append(rival.name)
    if names:
        program = "your program" if report.original_stays else "the returned program"
        yield f"{program} is not expected to do better than {' or '.join(names)}"


def _scarce_classes(report: ReportData) -> Iterator[str]:
    """Name the classes with fewer demos than `min_per_class`."""
    for predictor, numbers in report.scarce_classes.items():
        names = [f"{label!r} ({number})" for label, number in numbers.items()]
        if len(names) > MAX_CLASSES:
            names[MAX_CLASSES:] = [f"{len(names) - MAX_CLASSES} more"]
        more = ""
        if report.settings.get("candidates") == "bootstrapped":
            more = ", or increase max_bootstrapped"
        yield (
            f"{predictor} has fewer than min_per_class={report.settings['min_per_class']} demos to choose from for "
            f"{', '.join(names)}: pass more examples of these classes{more}"
        )


def _calibration(report: ReportData) -> Iterator[str]:
    """State what a calibrated program assumes, or recommend calibration."""
    effect = report.calibration
    if effect is None:
        return
    if effect.applied:
        assumption = "the likeliest label is the answer"
        if effect.shares and report.signal is not None:
            assumption = (
                f"label shares are assumed to be {shares_by_label(report.signal.labels, effect.shares)}"
            )
        yield f"calibrated: {assumption}; the program needs label probabilities at every call"
        return
    share_answered = 1.0 - report.original.num_failed / max(1, report.original.num_calls)
    calibrated_score = share_answered * effect.original_calibrated
    own_score = effect.original
    if report.comparison is not None:
        own_score = max(own_score, report.comparison.expected_chosen[0])
    if calibrated_score > own_score and not report.settings.get("calibrate"):
        optimizer = "BatchCalibration"
        metric = str(report.settings.get("metric"))
        if "(" in metric:  # This is a metric over a set, which `BatchCalibration` accepts.
            optimizer += f"(metric={metric})"
        score = f"if calibrated, your program is expected to score {calibrated_score:.3f}"
        yield f"{score}: use {optimizer}, or calibrate=True"


def _cheaper_prompt(report: ReportData) -> Iterator[str]:
    """Name the cheapest prompt that is as good as the returned prompt, if it has clearly fewer tokens."""
    cheapest = next((entry for entry in report.front if entry.is_as_good), None)
    returned = next((entry for entry in report.front if entry.is_returned), None)
    if cheapest is None or returned is None or report.comparison is None:
        return
    is_much_cheaper = cheapest.prompt_tokens <= MUCH_CHEAPER * returned.prompt_tokens
    if not is_much_cheaper or cheapest.num_examples < MIN_SCORED:
        return
    yield (
        f"a cheaper prompt is probably as good, within {AS_GOOD}: {cheapest.name} ({_price(cheapest)} instead of "
        f"{_price(returned)}); build it: optimizer.program_with(within={AS_GOOD})"
    )


def _price(entry: FrontEntry) -> str:
    cost = f", {dollars(entry.cost)} per 1,000 predictions" if entry.cost else ""
    return f"{entry.prompt_tokens:,} tokens{cost}"


def details(report: ReportData) -> Iterator[str]:
    """Yield the lines of `report.details()`: the summary, then the details."""
    yield from summary(report)
    yield from _settings(report)
    comparison = report.comparison
    if comparison is not None and not report.original_stays:
        gain = score_text(comparison.gain, *comparison.interval, sign="+")
        # A race of programs has no final comparison.
        title = "final comparison alone" if report.settings.get("num_selection") else "mean scores"
        yield (
            f"{title}: {comparison.original:.3f} -> {comparison.chosen:.3f} on "
            f"{count(comparison.num_examples, 'example')}, gain {gain} for the best of {comparison.num_candidates}"
        )
    # The report does not contain the demos and instructions of the user's programs.
    if not report.returned.name:
        for slot in report.slots:
            yield from _demos(slot)
    if len(report.front) > 1:
        yield "the best prompt for each combination of kind, number of demos and instruction, cheapest first:"
        rows = {entry.name: f"{_score_of(entry)}, {_price(entry)}" for entry in report.front}
        yield from _table(rows)
    for instruction in report.instructions:
        yield from _instructions(instruction, is_chosen=not report.returned.name)
    proposals = report.proposals
    if proposals is not None:
        yield f"{count(proposals.num_texts, 'instruction')} proposed by {proposals.model}"
    for model, tokens in report.tokens.items():
        counts = [f"{number:,} {kind}" for kind, number in tokens.items()]
        yield f"tokens of {model}: {', '.join(counts)}"
    if report.new_prompt_tokens:
        yield f"prompt tokens not in a server's prefix cache: about {report.new_prompt_tokens:,}"
    for error in report.errors:
        calls = count(error.count, "call")
        yield f"{calls} {error.outcome}: {error.type}: {error.message} ({', '.join(error.examples)})"


def _settings(report: ReportData) -> Iterator[str]:
    """Describe the model, the examples, the calls and the signal."""
    settings = report.settings
    names = [*settings.get("models", []), settings.get("adapter"), settings.get("metric")]
    known_names = [str(name) for name in names if name]
    yield f"{', '.join(known_names)}, seed {settings.get('seed')}"
    examples = f"examples: {settings.get('num_train')}"
    if settings.get("num_selection"):
        examples += f" to search, {settings['num_selection']} for the final comparison"
    if settings.get("num_repeated"):
        examples += f"; {settings['num_repeated']} duplicates ignored"
    yield examples
    calls = [f"{phase} {number:,}" for phase, number in report.program_calls.items() if number]
    if calls:
        yield f"calls: {', '.join(calls)}"
    signal = report.signal
    if signal is not None and signal.used != "score":
        yield "learned from scores and label probabilities"
    elif signal is not None and signal.reason:
        yield f"learned from scores alone: {signal.reason}"


def _demos(slot: SlotReport) -> Iterator[str]:
    """Yield the demos in a predictor's prompts in prompt order."""
    if not slot.ordering:
        yield f"{slot.predictor}: shows none of {count(len(slot.demos), 'demo')}"
        return
    num_shown = f"{len(slot.ordering)} of {count(len(slot.demos), 'demo')}"
    yield f"{slot.predictor}: {num_shown} in the order {slot.ordering}, with the last demo next to the question"
    for number in slot.ordering:
        origin = f" ({slot.origins[number]})" if slot.origins else ""
        fields = [f"{name}: {_one_line(value, FIELD_WIDTH)}" for name, value in slot.demos[number].items()]
        yield f"  demo {number}{origin}: {' | '.join(fields)}"


def _instructions(report: InstructionReport, *, is_chosen: bool) -> Iterator[str]:
    """List a predictor's instructions, each with the score of the best prompt that uses it."""
    if report.alternatives:
        chosen = f"instruction {report.chosen} was chosen" if is_chosen else "no instruction was chosen"
        yield f"{report.predictor}: {chosen}; scores of the best prompt with each:"
    for number, instruction in enumerate(report.alternatives):
        score = "not scored"
        if instruction.score is not None:
            score = score_text(instruction.score, *(instruction.interval or ()))
            score += f" on {count(instruction.num_examples, 'example')}"
        yield f"  instruction {number} ({instruction.origin}): {score}: {_one_line(instruction.text)}"
    for unused in report.dropped:
        yield f"  not used ({unused.origin}): {unused.reason}: {_one_line(unused.text)}"


def _one_line(text: str, width: int = TEXT_WIDTH) -> str:
    return shorten(" ".join(text.split()), width)

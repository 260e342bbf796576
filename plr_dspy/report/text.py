"""The text of a report: the lines of `print(report)`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from plr_dspy.report.claims import (
    CLOSE,
    failed_comparisons,
    how_to_calibrate,
    is_no_better,
    optimizer_that_calibrates,
    unseen_labels,
)
from plr_dspy.report.formats import (
    count,
    dollars,
    one_line,
    price,
    score_of,
    score_text,
    share_text,
    shares_by_label,
    table,
    unread_note,
)
from plr_dspy.report.problems import TOO_LONG, problems
from plr_dspy.report.rules import DEFAULT_MAX_DEMOS, ENOUGH_SCORED, MIN_ODDS, USER_PROGRAM_ODDS
from plr_dspy.report.schema import (
    AS_GOOD,
    FAILED,
    WRONG,
    Alternative,
    Candidate,
    Comparison,
    ProgramState,
    ReportData,
)
from plr_dspy.report.stop import StopReason

# If the probability of a gain is lower than this, the report says that the gain may be chance.
MIN_WIN_PROBABILITY = 0.9
# If programs were compared on at least this share of the examples, a larger budget would not help.
ENOUGH_COMPARED = 0.8
# A cheaper prompt is reported only if it has at most `MUCH_CHEAPER` times as many tokens as the returned
# prompt, and was scored on at least `ENOUGH_SCORED` examples.
MUCH_CHEAPER = 0.95
# The argument to increase if a limit ended the search.
LIMITS = {StopReason.COST: "max_cost", StopReason.TIME: "max_seconds"}
MORE_EXAMPLES = "only more examples, in trainset or valset, would reduce the uncertainty"


def method(report: ReportData) -> str:
    """Return the name of the optimizer."""
    return str(report.settings.get("method", "PLReorder"))


def result(report: ReportData) -> str:
    """Describe the result and the cost of a compile run in one line."""
    verdict = next(_verdict(report), "")
    if report.comparison is not None and not report.original_stays:
        verdict = f"gain {_gain(report.comparison)}"
    return f"{verdict}; {count(report.program_calls['total'], 'call')}{_cost(report)}; {report.stopped}"


def summary(report: ReportData) -> Iterator[str]:
    """Yield the lines of `print(report)`."""
    yield from problems(report, _programs_by_name(report))
    yield _header(report)
    yield from _scores(report)
    yield from _programs(report)
    yield from _verdict(report)
    yield from _baselines_not_beaten(report)
    yield from _similar_demos(report)
    for instruction in report.other_instructions:
        chosen = instruction.alternatives[instruction.chosen]
        yield f"instruction for {instruction.predictor} ({chosen.origin}): {one_line(chosen.text)}"
    yield from _calibration(report)
    yield from _cheaper_prompt(report)
    retrieval = report.retrieval
    if retrieval is not None and report.retrieves:
        yield f"retrieved demos: {retrieval.text}; all {retrieval.num_pooled:,} demos are saved with the program"
    if not (report.original_stays or report.is_unfinished) and (
        report.comparison is not None or report.retrieves
    ):
        text = "save the program with program.save, and load it with plr_dspy.load_program"
        if report.returned.name:
            text += f" and a program built like {report.returned.name!r}"
        yield text


def _programs_by_name(report: ReportData) -> dict[str, ProgramState]:
    """Return the student and, if it differs, the returned program, keyed by their names in the text."""
    programs = {name_of_student(report): report.original}
    if not report.original_stays:
        name = "the best program so far" if report.is_unfinished else "the returned program"
        programs[name] = report.returned
    return programs


def _header(report: ReportData) -> str:
    """Describe the calls, the cost, the time, and why the search ended."""
    numbers = Counter(
        {
            "to make demos": report.program_calls.get("bootstrap", 0),
            "of them from log_dir": report.program_calls.get("resumed", 0),
        }
    )
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
    title = "simple methods, scored without extra calls:"
    if comparison is not None:
        title = "scores expected on new examples, with 95% intervals:"
        title_of_student = "first program" if report.original.name else "your program"
        rows[_described(title_of_student, report.original)] = score_text(*comparison.expected_original)
        if not report.original_stays:
            name = _described("returned program", report.returned)
            if report.other_instructions:
                name += ", another instruction"
            if report.is_calibrated:
                name += ", calibrated"
            rows[name] = score_text(*comparison.expected_chosen)
            rows["gain"] = _gain(comparison)
            if comparison.over_calibrated is not None and comparison.worse_than_calibrated is not None:
                rows["gain over your program, calibrated"] = _likelihood(
                    comparison.over_calibrated, comparison.worse_than_calibrated
                )
        over_best_own = report.over_best_own
        if over_best_own is not None:
            rows[f"gain over {over_best_own.name!r}"] = _gain(over_best_own)
    for baseline in _baselines(report):
        rows[baseline.name] = score_of(baseline)
    if rows:
        yield title
        yield from table(rows)
    if comparison is not None:
        yield from unseen_labels(comparison)
    if report.stop_reason is StopReason.INTERRUPTED:
        yield "the scores of simple methods are omitted, because the run was interrupted"


def _described(text: str, state: ProgramState) -> str:
    """Append a program's name, number of demos and, if known, prompt size to a description."""
    name = f" {state.name!r}" if state.name else ""
    tokens = "" if state.prompt_tokens is None else f" ({count(state.prompt_tokens, 'prompt token')})"
    return f"{text}{name}, {count(state.num_demos, 'demo')}{tokens}"


def _programs(report: ReportData) -> Iterator[str]:
    """List the user's programs with their scores."""
    rows = {}
    for program in report.programs:
        scored_on = f"{score_of(program)} on {count(program.num_examples, 'example')}"
        rows[f"{program.name}, {count(program.num_demos, 'demo')}"] = scored_on + unread_note(
            program.num_unread
        )
    if rows:
        yield "programs, best expected score first:"
        yield from table(rows)


def _gain(comparison: Comparison) -> str:
    gain = score_text(comparison.expected_gain, *comparison.gain_interval, sign="+")
    return f"{gain}, {_likelihood(comparison.probability, comparison.probability_worse)}"


def _likelihood(better: float, worse: float) -> str:
    """Say how likely a program is to be better, and whether a gain may be chance."""
    text = f"better with probability {share_text(better)}"
    if better < MIN_WIN_PROBABILITY:
        text += f", worse with {share_text(worse)}: may be chance"
    return text


def _name_of_result(report: ReportData) -> str:
    return name_of_student(report) if report.original_stays else "the returned program"


def name_of_student(report: ReportData) -> str:
    """Return "your program" or, in a race of programs, the name of the first program."""
    return repr(report.original.name) if report.original.name else "your program"


def _baselines(report: ReportData) -> list[Alternative]:
    return [baseline for baseline in (report.random, report.constant, report.vote) if baseline is not None]


def _verdict(report: ReportData) -> Iterator[str]:
    """Explain the result of the run, and say how to reduce the uncertainty."""
    comparison = report.comparison
    if report.is_unfinished:
        yield from _why_nothing_is_returned(report)
    elif not _is_scored_on_examples(report) and report.stop_reason is StopReason.ALL_ASKED:
        yield "the order was chosen according to label probabilities, so its score is not known"
    elif report.original_stays:
        yield f"{name_of_student(report)} is kept: {_why_original_is_kept(report)}"
        yield from _advice(report)
    elif comparison is None:
        text = f"nothing was compared with {name_of_student(report)}, so the gain is not known"
        if report.stop_reason is StopReason.NO_CALLS:
            text += ": to measure it, score both programs on other examples with evaluate_programs"
        yield text
        yield from _advice(report)
    else:
        yield from _better_but_uncertain(report, comparison)
        if _may_be_chance(comparison):
            yield from _advice(report)


def _why_nothing_is_returned(report: ReportData) -> Iterator[str]:
    """Say that the run did not finish, which program is the best so far, and how to resume the run.

    Do not suggest resuming after unparsable replies, because the run would end in the same way.
    """
    # A race of programs has no optimizer.
    if _is_scored_on_examples(report) and not report.settings.get("num_selection"):
        yield "the run did not finish, so no program was chosen"
    else:
        best = "your program" if report.original_stays else "the best program so far"
        yield f"the run did not finish, so nothing was returned; optimizer.best_program is {best}"
    if report.stop_reason is not StopReason.UNREADABLE:
        yield "if log_dir is set, repeat the run with the same arguments to resume it"


def _is_scored_on_examples(report: ReportData) -> bool:
    """Return whether the method scores orders on examples, instead of by label probabilities alone."""
    return bool(report.settings.get("scored_on", "train examples") == "train examples")


def _may_be_chance(comparison: Comparison) -> bool:
    """Return whether the gain over the student or over the calibrated student may be chance."""
    over_calibrated = comparison.over_calibrated
    if over_calibrated is not None and over_calibrated < MIN_WIN_PROBABILITY:
        return True
    return comparison.probability < MIN_WIN_PROBABILITY


def _why_original_is_kept(report: ReportData) -> str:
    if report.comparison is None:
        if not report.program_calls["total"]:
            return "nothing was compared with it"
        if report.stop_reason is StopReason.NO_DIFFERENCE:
            return "no prompt scored higher than another"
        if not _is_scored_on_examples(report):
            return "the run ended before orders could be compared"
        if report.original.name:  # Only races name the original, and races have no final comparison.
            return "no other program was scored on all examples of the first round"
        return "no other program was scored on enough examples of the final comparison"
    best = _best_other(report)
    if best is None or not report.settings.get("racing", True):
        if report.original.name:
            return "no other program is expected to do better"
        # Programs outside the comparison, for example with random demos, may be expected to do better.
        return "no other program in the final comparison is expected to do better"
    return f"the best other program is expected to gain {best.expected_gain:+.3f}, but {_uncertainty(report, best)}"


def _better_but_uncertain(report: ReportData, comparison: Comparison) -> Iterator[str]:
    """Say so if a user's program is returned, but a result of the search is expected to score higher."""
    best = _best_other(report)
    if report.returned.name and best is not None and not best.name:
        more = best.expected_gain - comparison.expected_gain
        if more > 0:
            yield (
                f"a result of the search is expected to score {more:.3f} more than the returned program, but this is "
                "too uncertain"
            )


def _uncertainty(report: ReportData, candidate: Candidate) -> str:
    """Say why a candidate was not chosen: a loss is likelier, or the probabilities do not meet the rule."""
    probabilities = _probabilities(candidate.probability, candidate.probability_worse)
    if candidate.over_calibrated is not None and candidate.worse_than_calibrated is not None:
        over_calibrated = _probabilities(candidate.over_calibrated, candidate.worse_than_calibrated)
        probabilities += f"; compared with your program, calibrated: {over_calibrated}"
    if candidate.probability < candidate.probability_worse:
        # According to all scores, the expected gain is above 0. The probabilities may contradict
        # this gain, because they also depend on which scores differ on the same examples.
        return f"is more likely to be worse ({probabilities})"
    odds = MIN_ODDS
    if candidate.name:  # Only the user's programs have names.
        odds = USER_PROGRAM_ODDS
    rule = f"it must be at least {odds:g} times as likely to be better as worse"
    min_probability = report.settings.get("min_probability")
    if min_probability is not None:
        rule = f"min_probability is {min_probability:g}"
    failed = failed_comparisons(candidate, odds, min_probability)
    if failed:
        rule += f", which fails for {' and for '.join(failed)}"
    return f"this is too uncertain ({probabilities}; {rule})"


def _probabilities(better: float, worse: float) -> str:
    """Format two probabilities. Round them so that they do not seem to justify choosing the candidate."""
    rounded_down = math.floor(round(100 * better, 6)) / 100
    rounded_up = math.ceil(round(100 * worse, 6)) / 100
    # Do not show a probability above 0 as 0.
    rounded_down = rounded_down or min(better, 0.001)
    return f"better with probability {share_text(rounded_down)}, worse with {share_text(rounded_up)}"


def _best_other(report: ReportData) -> Candidate | None:
    """Return the other program with the largest expected gain, or None if no gain is above 0."""
    best = max(report.candidates[1:], key=lambda candidate: candidate.expected_gain, default=None)
    return best if best is not None and best.expected_gain > 0 else None


def _advice(report: ReportData) -> Iterator[str]:
    """Say how to reduce the uncertainty."""
    evidence = report.evidence
    settings = report.settings
    # If `num_met` is 0, no two orders were scored on the same example, so give no advice yet.
    if evidence is None or not evidence.num_met:
        return
    if report.stop_reason is StopReason.DECIDED:
        # The race ended before the budget was used up, so a larger budget would not help.
        if _best_other(report) is not None:
            yield "for a narrower interval, score the programs on other examples with evaluate_programs"
        return
    num_selection = settings.get("num_selection", 0)
    racing = settings.get("racing")
    if not evidence.num_differing and (racing or report.comparison is None):
        # A race of programs has no selection split.
        compared = "prompts" if num_selection else "programs"
        text = f"scores did not differ between {compared} on {count(evidence.num_met, 'example')}"
        if num_selection:
            text += (
                ": check that the metric compares the right fields, and check with dspy.inspect_history() that the "
                "demos reach the model; if both are true, the demos may not matter"
            )
        yield text
        return
    num_usable = settings.get("num_train", 0) + num_selection
    budget = settings.get("max_metric_calls") or 0
    is_enough = evidence.num_compared >= ENOUGH_COMPARED * num_usable
    if is_enough or not racing or budget >= settings.get("most_useful_calls", math.inf):
        yield MORE_EXAMPLES
    elif report.stop_reason in (StopReason.STOP_AT_SCORE, StopReason.PATIENCE):
        yield f"more calls would reduce the uncertainty, but the search ended early ({report.stopped})"
    else:
        limit = LIMITS.get(report.stop_reason, "max_metric_calls")
        yield f"a larger budget ({limit}) would reduce the uncertainty"


def _baselines_not_beaten(report: ReportData) -> Iterator[str]:
    """Name the simpler methods that the returned program does not beat by more than 1%."""
    if report.comparison is None:
        return
    returned_score = report.comparison.expected_chosen[0]
    if report.has_set_metric:
        # The expected score may be far too low for a metric over a set, so a higher measured score suffices.
        returned_score = max(returned_score, report.comparison.chosen)
    names = []
    for baseline in _baselines(report):
        if baseline is report.vote and _vote_is_better(report):
            continue  # `_similar_demos` reports the vote.
        if is_no_better(report, returned_score, baseline):
            names.append(baseline.name)
    if names:
        yield f"{_name_of_result(report)} is not expected to do better than {' or '.join(names)}"
        if report.random is not None and report.random.name in names:
            yield from how_to_calibrate(report)


def _similar_demos(report: ReportData) -> Iterator[str]:
    """Recommend retrieved demos if they were not tried and a vote of similar examples is better."""
    if not _vote_is_better(report):
        return
    assert report.vote is not None
    arguments = "metric, demos='retrieved', max_metric_calls=0"
    max_demos = report.settings.get("max_demos")
    if max_demos != DEFAULT_MAX_DEMOS:
        arguments += f", max_demos={max_demos}"
    yield (
        f"{report.vote.name}, does better than {_name_of_result(report)}, probably not by chance: try "
        f"PLFewShot({arguments}), which shows the examples that are most similar to each input, and needs no calls "
        "to compile"
    )


def _vote_is_better(report: ReportData) -> bool:
    """Return whether only fixed demos were tried, and a vote is better than the returned program."""
    comparison = report.comparison
    if comparison is None or report.vote is None or report.vote_gain is None:
        return False
    is_better = report.vote_gain.interval[0] > 0 and report.vote.score > comparison.expected_chosen[0]
    return is_better and report.settings.get("demos") == "fixed"


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
        yield f"calibrated: {assumption}; at every call, the program needs a model that returns label probabilities"
        return
    calibrated_score = effect.original_calibrated
    returned_score = effect.original
    if report.comparison is not None:
        returned_score = max(returned_score, report.comparison.expected_chosen[0])
    is_better = calibrated_score > returned_score + CLOSE * abs(returned_score)
    is_certain = effect.probability >= MIN_WIN_PROBABILITY
    if is_better and is_certain and not report.settings.get("calibrate"):
        score = f"if calibrated, your program is expected to score {calibrated_score:.3f}"
        # `calibrate=True` cannot be combined with `programs`.
        argument = "" if report.programs else ", or calibrate=True"
        yield f"{score}: use {optimizer_that_calibrates(report)}{argument}"


def _cheaper_prompt(report: ReportData) -> Iterator[str]:
    """Recommend a prompt that is as good as the returned prompt but has clearly fewer tokens."""
    cheapest = next((entry for entry in report.front if entry.is_as_good), None)
    returned = next((entry for entry in report.front if entry.is_returned), None)
    if cheapest is None or returned is None or report.comparison is None:
        return
    is_much_cheaper = cheapest.prompt_tokens <= MUCH_CHEAPER * returned.prompt_tokens
    if not is_much_cheaper or cheapest.num_examples < ENOUGH_SCORED:
        return
    yield (
        f"a cheaper prompt is probably as good, within {AS_GOOD}: {cheapest.name} ({price(cheapest)} instead of "
        f"{price(returned)}); to build it, call optimizer.program_with(within={AS_GOOD})"
    )

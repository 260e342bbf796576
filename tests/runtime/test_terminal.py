"""Terminal output: complete lines above the progress bar, and one line at the end."""

import io
import itertools
import logging
import re
import sys
import warnings
from unittest import mock

import dspy
import pytest
from fakes import exact_match, fake_lm, questions

from plr_dspy import PLFewShot, PLReorder
from plr_dspy.baselines import StaticOrder, TopKOrder

EXAMPLES = questions(60)


def rendered(raw):
    """Return the lines that a terminal shows after printing these characters."""
    lines = [[]]
    column = 0
    for character in raw:
        if character == "\n":
            lines.append([])
        if character in "\r\n":
            column = 0
        else:
            lines[-1][column : column + 1] = [character]
            column += 1
    texts = ["".join(line).rstrip() for line in lines]
    return [text for text in texts if text]


@pytest.fixture
def terminal(monkeypatch, capsys):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with dspy.context(lm=fake_lm(EXAMPLES)[0]):
        yield lambda: "".join(capsys.readouterr())


def compiled(kind=PLReorder, metric=exact_match, *, num_demos=5, handlers=(), **options):
    """Compile with only these log handlers, and return the optimizer."""
    program = dspy.LabeledFewShot(k=num_demos).compile(
        dspy.Predict("question -> answer"), trainset=EXAMPLES
    )
    optimizer = kind(metric, **{"max_metric_calls": 200, "num_threads": 2, **options})
    with mock.patch.object(logging.root, "handlers", list(handlers)):
        optimizer.compile(program, trainset=EXAMPLES)
    return optimizer


@pytest.mark.parametrize("broken", [BrokenPipeError, OSError, None])
def test_a_compile_continues_if_the_bar_cannot_be_written(terminal, monkeypatch, broken):
    """Standard error is a closed pipe, a file on a full disk, or None."""

    class Gone(io.StringIO):
        def write(self, text):
            if self.getvalue():
                raise broken("gone")
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", broken and Gone())
    assert compiled().report.program_calls["total"] > 150


def test_the_bar_counts_the_calls_that_make_demos(terminal):
    """At first, the bar's total is the number of calls that the budget allows."""
    optimizer = PLFewShot(exact_match, max_metric_calls=100, num_threads=1)
    optimizer.compile(dspy.ChainOfThought("question -> answer"), trainset=EXAMPLES)
    totals = re.findall(r"\d+/(\d+) ", terminal())
    assert optimizer.report.program_calls["bootstrap"] > 0
    assert set(totals[:-2]) == {"100"}
    assert int(totals[-1]) == optimizer.report.program_calls["total"] <= 100


def test_log_lines_are_above_the_bar_and_the_result_is_below(terminal, monkeypatch):
    numbers = itertools.count(1)

    def to_standard_error(message, category, filename, lineno, file=None, line=None):
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))

    def metric(example, prediction, trace=None):
        number = next(numbers)
        if number % 37 == 0:
            logging.getLogger("dspy.teleprompt").warning("DSPy says %d.", number)
        if number % 41 == 0:
            logging.getLogger("another.library").warning("A library says %d.", number)
        if number % 43 == 0:
            warnings.warn(f"Python says {number}.")  # noqa: B028
        if example.question.endswith("3"):
            raise ValueError("boom")
        return exact_match(example, prediction)

    monkeypatch.setattr(warnings, "showwarning", to_standard_error)
    monkeypatch.setenv("COLUMNS", "150")
    compiled(metric=metric, max_errors=1000)
    lines = rendered(terminal())
    bars = [line for line in lines if "call/s" in line]
    assert bars == lines[-2:-1]
    assert re.search(r"(\d+)/\1", bars[0])
    assert re.search(
        r" INFO .* gain .*, better with probability .*; \d+ calls; budget used up$", lines[-1]
    ), lines[-1]
    counts = {"DSPy says": 5, "A library says": 5, "UserWarning: Python says": 4, "boom": 1}
    for text, count in counts.items():
        matching = [line for line in lines if text in line]
        assert len(matching) == count, matching
        assert all(line.endswith((".", "boom")) for line in matching)
    (first,) = [line for line in lines if " INFO plr_dspy.compiling.rounds: round 1:" in line]
    assert first.startswith("20")


def test_all_output_except_warnings_can_be_switched_off(terminal, caplog):
    compiled(display_progress=False)
    assert terminal() == ""
    compiled(display_progress=False, num_demos=1)
    (line,) = terminal().splitlines()
    assert " WARNING plr_dspy.compiling.run: all choices give the same prompt" in line
    dspy.disable_logging()
    try:
        compiled(display_progress=False, num_demos=1)
    finally:
        dspy.enable_logging()
    assert terminal() == ""
    with caplog.at_level(logging.WARNING, logger="plr_dspy"):
        compiled()
    assert all("call/s" in line for line in rendered(terminal()))


def test_stderr_of_programs_is_shown_above_the_bar(terminal):
    before = sys.stderr

    def metric(example, prediction):
        # The metric also scores constant answers, which have no completions.
        if prediction.completions is not None:
            print("half a line,", end=" ", file=sys.stderr)
            print("the other half", file=sys.stderr)
        return exact_match(example, prediction)

    optimizer = compiled(metric=metric, num_threads=1)
    lines = [line for line in rendered(terminal()) if "half" in line]
    assert lines == ["half a line, the other half"] * optimizer.report.program_calls["total"]
    assert sys.stderr is before


def test_lines_of_configured_logging_are_shown_once_above_the_bar(terminal):
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("mine: %(message)s"))
    compiled(handlers=[handler])
    *lines, bar, result = rendered(terminal())
    assert re.search(r"(\d+)/\1", bar)
    assert all(line.startswith("mine: ") for line in [*lines, result])
    assert len([line for line in lines if "round 1:" in line]) == 1
    assert handler.stream is sys.stderr


@pytest.mark.parametrize(
    ("options", "ending"),
    [
        ({}, r"gain \+\d\.\d{3} .*better with .*; \d+ calls; budget used up"),
        ({"metric": lambda e, p: 1}, r"your program is kept: .*; 60 calls; every score was 1 in 60 calls"),
        ({"num_demos": 1}, r"your program is kept: .*; 0 calls; all choices give the same prompt"),
        ({"kind": StaticOrder}, r"your program is kept: .*; 0 calls; .*"),
        ({"kind": TopKOrder}, r"your program is kept: .*; 165 calls; all iterations done"),
    ],
)
def test_the_last_line_states_the_result(terminal, options, ending):
    optimizer = compiled(**options)
    assert re.search(f"{ending}$", rendered(terminal())[-1])
    assert re.search(ending, repr(optimizer.report))


def test_the_last_line_of_a_compile_that_ends_in_an_error(terminal):
    calls = []

    def metric(example, prediction):
        calls.append(example)
        if len(calls) > 120:
            raise ValueError(f"boom {len(calls)}")
        return example.answer == prediction.answer

    with pytest.raises(ValueError, match="boom"):
        compiled(metric=metric, max_errors=3)
    last = rendered(terminal())[-1]
    assert "the run did not finish, so nothing was returned" in last
    assert "; ended by ValueError" in last

"""The command `plr-dspy`. One test uses the real local model."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext

import dspy
import pytest
from brief import Sentiment, brief_reviews
from fakes import PlainLabels, interrupt, lm_of

from plr_dspy import BatchCalibration, PlainTextAdapter, Report, load_program
from plr_dspy.cli import commands as cli
from plr_dspy.cli import compiling
from plr_dspy.cli.examples import read_examples
from plr_dspy.cli.output import printing
from plr_dspy.local import local_lm

APP = """
import dspy
from brief import Sentiment, brief_reviews

from plr_dspy.labels.calibrated_program import CalibratedProgram


def program():
    student = dspy.Predict(Sentiment)
    student.demos = brief_reviews("test", 3)
    return student


def bare():
    return dspy.Predict(Sentiment)


def calibrated():
    return CalibratedProgram(program())


def other():
    return dspy.Predict("text -> sentiment")


class Two(dspy.Module):
    def __init__(self):
        self.first = bare()
        self.second = bare()

    def forward(self, review):
        self.first(review=review)
        return self.second(review=review)


def explaining():
    return dspy.Predict("review -> sentiment, reason")


def needing(argument):
    return argument


def failing():
    raise ValueError("first\\nsecond")


def unsaveable():
    student = program()
    student.demos[2]["notes"] = {"a"}
    return student


def accuracy(example, prediction, trace=None):
    return example.sentiment == prediction.sentiment


def lenient(example, prediction, trace=None):
    return example.sentiment == prediction.sentiment or 0.5


def forgetful(example, prediction, trace=None):
    accuracy(example, prediction)


def picky(example, prediction, trace=None):
    return accuracy(example, prediction) and len(prediction.completions) == 1


number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yield a new current folder with a program and examples, and use a fake local model."""
    monkeypatch.setattr(compiling, "local_lm", lambda route, **_: nullcontext(lm_of(PlainLabels(lean=0.5))))
    (tmp_path / "reviews_app.py").write_text(APP)
    rows = [dict(example) for example in brief_reviews("train", 24)]
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    large = [json.dumps({**row, "id": 2 ** (63 + i)}) for i, row in enumerate(rows)]
    (tmp_path / "large.jsonl").write_text("\n".join(large))
    with (tmp_path / "train.csv").open("w", newline="", encoding="utf-8-sig") as file:
        file.write("review, sentiment\n")
        csv.DictWriter(file, rows[0].keys()).writerows(rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("reviews_app", None)


def compile_arguments(*more, program="reviews_app.py:program", metric="reviews_app.py:accuracy"):
    return [
        *("compile", program, "--metric", metric, "--train", "train.jsonl", "--inputs", "review"),
        *("--lm", "local", "--max-calls", "36", "--out", "program.json"),
        *more,
    ]


def test_compile_and_report(folder, capsys):
    arguments = compile_arguments("--log-dir", "log", "--report", "found.json", "--max-calls", "27")
    assert cli.main(arguments) == 0
    program = dspy.Predict("review -> sentiment")
    program.load("program.json")
    assert len(program.demos) == 3
    first = Report.load("found.json")
    assert 0 < first.program_calls["total"] <= 60
    assert cli.main(arguments) == 0, "the second run must resume from the folder"
    assert Report.load("found.json").program_calls["resumed"] == first.program_calls["total"]
    assert "3 of 3 demos in the order" in capsys.readouterr().out
    for path in ("found.json", "log"):
        capsys.readouterr()
        assert cli.main(["report", path]) == 0
        assert f"{first.program_calls['total']:,} program calls" in capsys.readouterr().out


def test_choose(folder, capsys):
    save_two_demos("saved.json")
    arguments = ["choose", "reviews_app.py:bare", "saved.json", "reviews_app.py:program"]
    arguments += [
        "--metric",
        "reviews_app.py:accuracy",
        "--train",
        "train.csv",
        "--inputs",
        "review",
        "--lm",
        "local",
    ]
    arguments += ["--max-calls", "40", "--log-dir", "log", "--out", "best.json", "--report", "race.json"]
    for _ in range(2):
        assert cli.main(arguments) == 0
    report = Report.load("race.json")
    assert report.program_calls["resumed"] == report.program_calls["total"] <= 40
    printed = capsys.readouterr().out
    assert f"chosen: {report.returned.name}" in printed
    assert "saved.json, 2 demos" in printed
    load_program(dspy.Predict(Sentiment), "best.json")
    assert cli.main([*arguments[:3], "saved.json", *arguments[3:]]) == cli.USER_ERROR
    assert "'saved.json' twice" in capsys.readouterr().err


@pytest.mark.parametrize(("adapter", "route"), [((), "completion"), (("--adapter", "chat"), "chat")])
def test_the_local_model_gets_plain_text_unless_adapter_is_passed(
    folder, monkeypatch, capsys, adapter, route
):
    """If the model does not follow the prompt format, the run ends after a few replies."""
    engine = PlainLabels(lean=0.5)
    routes = []

    def local_lm(route, **_):
        routes.append(route)
        return nullcontext(lm_of(engine))

    monkeypatch.setattr(compiling, "local_lm", local_lm)
    code = cli.main(compile_arguments("--signal", "score", "--threads", "1", *adapter))
    assert routes == [route]
    error = capsys.readouterr().err
    if adapter:
        assert code == cli.FAILED
        assert "10 of 10 answers could not be parsed" in error
        assert "try an adapter other than ChatAdapter, such as PlainTextAdapter()" in error
        assert engine.requests <= 2 * 10  # ChatAdapter repeats each call to ask for JSON.
    else:
        assert code == 0
        assert "could not be parsed" not in error


def test_added_demos_are_reported(folder, caplog):
    assert cli.main(compile_arguments(program="reviews_app.py:bare")) == 0
    added = "8 labeled examples from trainset were added to self"
    message = f"student has no demos, so {added}. The search only orders them"
    assert message in caplog.text
    assert "--select" in caplog.text


def test_a_calibrated_program_is_saved(folder, capsys):
    assert cli.main(compile_arguments("--calibrate", "--report", "found.json", "--max-calls", "90")) == 0
    program = load_program(
        dspy.Predict("review -> sentiment: Literal['negative', 'positive']"), "program.json"
    )
    assert program.calibration.labels == ("negative", "positive")
    assert program.calibration.offsets == tuple(Report.load("found.json").calibration.offsets)
    assert "the program needs a model that returns label probabilities" in capsys.readouterr().out
    save_two_demos("saved.json")
    for others in ((), ("--programs", "saved.json")):
        assert cli.main(compile_arguments("--demos", "program.json", "--estimate", *others)) == 2
        assert "must not be calibrated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("f1:positive", "F1(field='sentiment', label='positive', average='binary')"),
        ("balanced-accuracy", "BalancedAccuracy(field='sentiment')"),
    ],
)
def test_metrics_over_a_set_have_names(folder, metric, name, capsys):
    """The rows have a column of large integers that the program does not use."""
    assert (
        cli.main(compile_arguments("--report", "found.json", "--train", "large.jsonl", metric=metric)) == 0
    )
    report = Report.load("found.json")
    assert report.settings["metric"] == name
    assert name in capsys.readouterr().out


def test_select_chooses_the_demos(folder, capsys):
    selecting = compile_arguments("--select", "--max-demos", "2", "--report", "found.json")
    nowhere = [argument for argument in selecting if argument not in ("--out", "program.json")]
    assert cli.main([*nowhere, "--estimate"]) == 0
    output = capsys.readouterr().out
    assert "at most 36 program calls" in output
    assert cli.main(nowhere) == 2
    assert (
        "--out is missing: pass a file for the compiled program, or pass --estimate"
        in capsys.readouterr().err
    )
    assert not (folder / "program.json").exists()
    assert cli.main(selecting) == 0
    report = Report.load("found.json")
    assert report.settings["method"] == "PLFewShot"
    assert report.settings["max_demos"] == 2
    assert report.program_calls["total"] <= 60
    assert report.slots[0].original == [0, 1, 2]
    others = [best for best in report.best_by_number if best.ordering != {"self": [0, 1, 2]}]
    assert others
    assert all(best.num_demos <= 2 for best in others)


def save_two_demos(path):
    program = dspy.Predict(Sentiment)
    program.demos = brief_reviews("test", 2)
    program.save(path)


def test_other_programs_take_part_in_a_compile(folder, capsys):
    save_two_demos("saved.json")
    others = ("--programs", "saved.json", "reviews_app.py:bare")
    for select in ((), ("--select",)):
        assert (
            cli.main(compile_arguments(*select, "--report", "found.json", "--max-calls", "60", *others))
            == 0
        )
        names = {program.name for program in Report.load("found.json").programs}
        assert names >= {"saved.json", "reviews_app.py:bare"}
    assert "saved.json, 2 demos" in capsys.readouterr().out


def test_given_instructions_take_part_in_a_compile(folder):
    texts = ["Is the reviewer pleased?", "Name the sentiment."]
    arguments = compile_arguments(
        "--select", "--report", "found.json", "--max-calls", "60", "--instructions", *texts
    )
    assert cli.main(arguments) == 0
    (instructions,) = Report.load("found.json").instructions
    own, *others = instructions.alternatives
    assert own.origin == "student"
    assert [instruction.text for instruction in others] == texts


REVIEWS = {row.review: row.sentiment for row in brief_reviews("train", 24)}


class NeedsDemos(PlainLabels):
    """A model that labels reviews correctly only if the prompt shows demos."""

    def tops(self, texts, wanted):
        *demos, asked = texts[-1].split("Review: ")[1:]
        label = REVIEWS[asked.splitlines()[0]]
        share = 0.9 if demos and label == "negative" else 0.1
        return [{" negative": share, " positive": 1.0 - share}]


def test_accepted_changes_are_an_option(folder, capsys):
    assert cli.main(compile_arguments("--log-dir", "log")) == 0
    arguments = compile_arguments("--log-dir", "log", metric="reviews_app.py:lenient")
    assert cli.main(arguments) == cli.USER_ERROR
    assert (
        "Pass another --log-dir. If the logged scores are still valid, you can pass --accept-changes instead."
        in (capsys.readouterr().err)
    )
    assert cli.main([*arguments, "--accept-changes"]) == 0


def test_the_printed_command_checks_the_compiled_program(folder, monkeypatch, capsys):
    monkeypatch.setattr(compiling, "local_lm", lambda route, **_: nullcontext(lm_of(NeedsDemos())))
    arguments = compile_arguments(
        "--select", "--max-calls", "90", "--threads", "1", program="reviews_app.py:bare"
    )
    assert cli.main(arguments) == 0
    *_, advice, command = capsys.readouterr().out.splitlines()
    assert (
        advice
        == "to check the program, run this command, with ROWS replaced by examples that no search has seen:"
    )
    name, *evaluate_arguments = shlex.split(command.replace("ROWS", "train.jsonl"))
    assert name == "plr-dspy"
    assert cli.main(evaluate_arguments) == 0
    assert re.search(r"program.json .*\+0\.\d+ .* over the first", capsys.readouterr().out)


def printed_dollars(capsys, *more):
    proposing = (
        "--select",
        "--lm",
        "openai/gpt-4o-mini",
        "--adapter",
        "chat",
        "--estimate",
        "--instructions",
        "propose",
    )
    assert cli.main(compile_arguments(*proposing, *more)) == 0
    output = capsys.readouterr().out
    assert "calls to the prompt model" in output
    return float(re.search(r"\$([\d.]+)", output).group(1))


def test_the_estimate_includes_the_proposals(folder, capsys):
    some = printed_dollars(capsys, "--num-instructions", "2")
    more = printed_dollars(capsys, "--num-instructions", "4")
    of_larger_model = printed_dollars(capsys, "--num-instructions", "4", "--prompt-model", "openai/gpt-4o")
    assert some < more < of_larger_model


def test_choose_with_estimate_makes_no_calls(folder, monkeypatch, capsys):
    engine = PlainLabels()
    monkeypatch.setattr(compiling, "local_lm", lambda route, **_: nullcontext(lm_of(engine)))
    save_two_demos("saved.json")
    arguments = shlex.split(
        "choose reviews_app.py:bare saved.json --metric reviews_app.py:accuracy --train train.jsonl --inputs review "
        "--lm local --max-calls 40 --estimate --out best.json"
    )
    assert cli.main(arguments) == 0
    assert "at most 40 program calls" in capsys.readouterr().out
    assert not engine.requests
    assert not (folder / "best.json").exists()


def test_an_estimate_does_not_start_the_local_model(folder, monkeypatch, capsys):
    def refuse(*arguments, **_):
        raise AssertionError(f"started {arguments}")

    monkeypatch.setattr(compiling, "local_lm", local_lm)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert cli.main(compile_arguments("--estimate")) == 0
    assert "at most 36 program calls" in capsys.readouterr().out


def evaluate(*more):
    model = ("--lm", "local", "--adapter", "plain", "--threads", "1")
    return ["evaluate", "reviews_app.py:program", "--inputs", "review", *model, *more]


def reviews_program():
    student = dspy.Predict(Sentiment)
    student.demos = brief_reviews("test", 3)
    return student


ACCURACY = ("--metric", "reviews_app.py:accuracy")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_values_are_converted_to_the_types_of_the_fields(folder, kind):
    rows = [
        {"review": "x", "stars": "2", "good": "TRUE", "note": "7"},
        {"review": "two\nlines", "stars": "none", "good": "false", "note": str(2**70)},
    ]
    path = folder / f"typed.{kind}"
    with path.open("w", newline="") as file:
        if kind == "csv":
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n\n" for row in rows)
    program = dspy.Predict("review -> stars: Literal[1, 2], good: bool")
    first, second = read_examples(path, ["review"], program)
    assert first.toDict() == {"review": "x", "stars": 2, "good": True, "note": "7"}
    assert second.toDict() == {"review": "two\nlines", "stars": "none", "good": False, "note": str(2**70)}
    assert first.inputs().keys() == ["review"]


@pytest.mark.parametrize(
    ("annotation", "cell", "value"),
    [
        ("str", 7, "7"),
        ("str", "", ""),
        ("str | None", 7, "7"),
        ("str | None", "", ""),
        ("str | None", None, None),
        ("Literal['1', '2']", 1, "1"),
        ("Literal[1, 2]", "1", 1),
        ("int | None", "", None),
        ("Literal['yes', 'no'] | None", "", None),
        ("Literal['yes', 'no']", "", ""),
        ("str | list[str]", "[INFO] disk full", "[INFO] disk full"),
        ("list[str]", '["a", "b"]', ["a", "b"]),
    ],
)
def test_values_that_fit_stay_unchanged_and_empty_cells_may_be_none(folder, annotation, cell, value):
    path = folder / "cells.jsonl"
    path.write_text(json.dumps({"review": "x", "answer": cell}))
    program = dspy.Predict(f"review -> answer: {annotation}")
    (example,) = read_examples(path, ["review"], program)
    assert (example.answer, type(example.answer)) == (value, type(value))


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_evaluate_takes_a_calibrated_program(folder, capsys, kind):
    student = reviews_program()
    with dspy.context(lm=lm_of(PlainLabels(lean=0.5)), adapter=PlainTextAdapter()):
        calibrated = BatchCalibration(num_threads=1).compile(student, trainset=brief_reviews("train", 24))
    calibrated.save("calibrated.json")
    assert cli.main(evaluate("--data", f"train.{kind}", *ACCURACY, "--programs", "calibrated.json")) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert rows.keys() == {"reviews_app.py:program", "calibrated.json", "always"}
    assert "over the first" in rows["calibrated.json"]


def test_evaluate_takes_programs_of_files_and_modules(folder, capsys):
    save_two_demos("saved.json")
    others = ("reviews_app.py:bare", "saved.json", "reviews_app:program")
    assert cli.main(evaluate("--data", "train.jsonl", *ACCURACY, "--programs", *others)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"reviews_app.py:program", *others} < {line.split()[0] for line in lines if line.strip()}


def test_evaluate_reads_the_rows_before_the_model_starts(folder, monkeypatch, capsys):
    monkeypatch.setattr(compiling, "local_lm", None)
    (folder / "renamed.csv").write_text("text,sentiment\nshort,positive\nlong,negative\n")
    assert cli.main(evaluate("--data", "renamed.csv", *ACCURACY)) == cli.USER_ERROR
    assert "row 1 of renamed.csv must have the inputs ['review']" in capsys.readouterr().err


def test_evaluate_by_several_metrics(folder, capsys):
    """Several metrics score the same calls, and each metric has its own table."""
    names = ["reviews_app.py:accuracy", "mcc", "f1:positive"]
    assert cli.main(evaluate("--data", "train.jsonl", "--metric", *names)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[::3] == [f"{name}: 24 examples" for name in names]
    for name, line in zip(names, lines[1::3], strict=True):
        assert cli.main(evaluate("--data", "train.jsonl", "--metric", name)) == 0
        assert capsys.readouterr().out.splitlines()[1] == line


def test_an_estimate_rejects_a_calibration_of_free_text(folder, capsys):
    arguments = compile_arguments("--estimate", "--calibrate", program="reviews_app.py:other")
    arguments[arguments.index("review")] = "text"
    rows = [{"text": f"review {number}", "sentiment": "good"} for number in range(24)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert cli.main(arguments) == cli.USER_ERROR
    assert "calibrate needs the log-probabilities of labels" in capsys.readouterr().err


def test_an_estimate_needs_no_api_key(folder, monkeypatch, capsys):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    assert cli.main(compile_arguments(*CHAT, "--api-key-env", "NO_SUCH_KEY", "--estimate")) == 0
    assert "program calls" in capsys.readouterr().out


def test_an_interrupted_evaluation_is_continued(folder, monkeypatch, capsys):
    engine = PlainLabels(lean=0.5)
    monkeypatch.setattr(compiling, "local_lm", lambda route, **_: nullcontext(lm_of(engine)))
    arguments = evaluate("--data", "train.jsonl", *ACCURACY, "--log-dir", "log", "--threads", "1")
    engine.at = {20: interrupt}
    assert cli.main(arguments) == cli.INTERRUPTED
    assert "if --log-dir was passed, run the same command again to resume" in capsys.readouterr().err
    assert cli.main(arguments) == 0
    assert engine.requests == 21 + 4
    assert (
        cli.main(evaluate("--data", "train.jsonl", "--metric", "mcc", "--log-dir", "log")) == cli.USER_ERROR
    )
    assert "the metric changed. Pass another --log-dir" in capsys.readouterr().err
    assert cli.main([*arguments, "--accept-changes"]) == 0
    assert engine.requests == 25


CHAT = ("--adapter", "chat", "--lm", "openai/x")
CHOOSE_MISSING = shlex.split(
    "choose reviews_app.py:program none.json --metric reviews_app.py:accuracy --train train.jsonl --inputs review "
    "--lm local"
)
CHOOSE_UNSAVEABLE = [
    *CHOOSE_MISSING[:2],
    "reviews_app.py:unsaveable",
    *CHOOSE_MISSING[3:],
    "--out",
    "best.json",
]
CHOOSE_OTHER = [*CHOOSE_MISSING[:2], "reviews_app.py:other", *CHOOSE_MISSING[3:]]
PICKY = {"metric": "reviews_app.py:picky"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (compile_arguments(program="nowhere.py:program"), "file not found: nowhere.py: pass FILE.py:NAME"),
        (compile_arguments(program="csv.py:program"), "file not found: csv.py: pass FILE.py:NAME"),
        (compile_arguments(program="nowhere:program"), "nowhere:program cannot be loaded (ModuleNotFound"),
        (
            compile_arguments(program="reviews_app.py:missing"),
            "module 'reviews_app' has no attribute 'missing'",
        ),
        (
            compile_arguments(program="reviews_app"),
            "'reviews_app' names no object: pass FILE.py:NAME or MODULE:NAME",
        ),
        (
            compile_arguments(program="reviews_app.py"),
            "'reviews_app.py' names no object: pass FILE.py:NAME",
        ),
        (
            compile_arguments(program="reviews_app.py:"),
            "'reviews_app.py:' names no object: pass FILE.py:NAME",
        ),
        (compile_arguments(program=":program"), "':program' names no object: pass FILE.py:NAME"),
        (
            compile_arguments(program="json.py:program"),
            "another module is also called json: rename the file",
        ),
        (compile_arguments(program="sys.py:program"), "another module is also called sys: rename the file"),
        (compile_arguments(program="reviews_app.py:number"), "program must be a DSPy module"),
        (
            compile_arguments(program="reviews_app.py:unsaveable"),
            "--out cannot be written, because demo 2 of predictor 'self' has a value of type set",
        ),
        (
            compile_arguments("--select", "--train", "large.jsonl"),
            "--out cannot be written, because demo 1 of predictor 'self' has a value of type int",
        ),
        (
            compile_arguments(program="broken_app.py:program"),
            "broken_app.py:program cannot be loaded (SystemExit: 7)",
        ),
        (
            compile_arguments(program="lazy_app.py:program"),
            "lazy_app.py:program cannot be loaded (KeyError: 'program'): pass FILE.py:NAME",
        ),
        (
            compile_arguments(program="reviews_app.py:needing"),
            "a function that returns one and needs no arguments",
        ),
        (compile_arguments(metric="reviews_app.py:number"), "metric"),
        (compile_arguments(metric="reviews_app.py:forgetful"), "metric must return a number"),
        (
            compile_arguments(metric="reviews_app.py:Sentiment"),
            "--metric reviews_app.py:Sentiment is a class: write metric = Sentiment(...) in a file, and pass FILE.py:",
        ),
        (
            compile_arguments("--train", "noted.csv", program="reviews_app.py:explaining", metric="f1"),
            "(on the command line, write metric = F1(...) in a file, and pass --metric FILE.py:metric)",
        ),
        (
            compile_arguments("--train", "partly.csv", program="reviews_app.py:bare"),
            "none were added: choose demos with PLFewShot (--select on the command line), pass a program that has",
        ),
        (
            compile_arguments(metric="accuracy"),
            "'accuracy' names no object: pass FILE.py:NAME or MODULE:NAME, or f1, mcc, balanced-accuracy or f1:LABEL",
        ),
        (
            compile_arguments(metric="balanced_accuracy"),
            "--metric balanced_accuracy is unknown: pass balanced-accuracy",
        ),
        (compile_arguments(metric="mcc:positive"), "--metric mcc takes no label; got 'mcc:positive'"),
        (compile_arguments("--inputs", "question"), "row 1 of train.jsonl"),
        (compile_arguments("--inputs", "text"), "add ['text'], or pass other names as inputs"),
        (compile_arguments("--train", "none.jsonl"), "file not found: none.jsonl"),
        (
            compile_arguments("--train", "folder.json"),
            "--train: folder.json is a folder: pass the path of a",
        ),
        (
            compile_arguments("--out", "folder.json"),
            "--out: folder.json is a folder: pass the path of a file",
        ),
        (compile_arguments("--report", "folder.json"), "--report: folder.json is a folder"),
        (compile_arguments("--log-dir", ""), "--log-dir: the path is empty: pass the path of a folder"),
        (
            evaluate("--data", "train.jsonl", *ACCURACY, "--log-dir", ""),
            "--log-dir: the path is empty: pass the path of a folder",
        ),
        (compile_arguments("--lm", ""), "--lm: the name is empty: pass a name such as openai/gpt-4o-mini"),
        (
            compile_arguments("--lm", "app.py:lm"),
            "--lm: app.py:lm names an object in a file, not a model: pass a name",
        ),
        (
            compile_arguments("--max-tokens", "abc"),
            "--max-tokens: must be a whole number of at least 1; got 'abc': pass 1 or a larger number",
        ),
        (compile_arguments("--report", "program.json"), "--report must differ from --out; got"),
        (compile_arguments("--threads", "0"), "--threads: must be a whole number of at least 1; got '0'"),
        (
            evaluate("--data", "train.jsonl", *ACCURACY, "--threads", "0"),
            "--threads: must be a whole number of at least 1; got '0': pass 1 or a larger number",
        ),
        (
            compile_arguments("--max-demos", "x"),
            "--max-demos: must be a whole number of at least 1; got 'x'",
        ),
        (compile_arguments("--num-instructions", "2.5"), "must be a whole number of at least 1; got '2.5'"),
        (
            compile_arguments("--max-calls", "-1"),
            "--max-calls: must be a whole number of at least 0; got '-1'",
        ),
        (
            [*CHOOSE_MISSING, "--max-calls", "0"],
            "--max-calls: must be a whole number of at least 1; got '0'",
        ),
        ([*CHOOSE_MISSING, "--seed", "-1"], "--seed: must be a whole number of at least 0; got '-1'"),
        (
            compile_arguments("--max-seconds", "1h"),
            "--max-seconds: must be a finite number above 0; got '1h': pass a number such as 1.5",
        ),
        (compile_arguments("--max-cost", "inf"), "--max-cost: must be a finite number above 0; got 'inf'"),
        (compile_arguments(*CHAT, "--api-key-env", "NO_SUCH_KEY"), "variable 'NO_SUCH_KEY' is not set"),
        (compile_arguments(program="reviews_app.py:failing"), "raised ValueError (first second): pass"),
        (compile_arguments("--train", "cut.jsonl"), "cut.jsonl cannot be read"),
        (
            compile_arguments("--train", "wide.csv"),
            "line 3 of wide.csv must have 2 cells, one for each column; got 3",
        ),
        (
            compile_arguments("--train", "short.csv"),
            "line 2 of short.csv must have 2 cells, one for each column; got 1",
        ),
        (
            compile_arguments("--train", "hub:SetFit/subj"),
            "must have the form hub:NAME:SPLIT or hub:NAME:CONFIGURATION:SPLIT",
        ),
        (compile_arguments("--train", "hub:SetFit/subj:train"), "cannot be read from the Hugging Face hub"),
        (compile_arguments("--train", "latin.csv"), "latin.csv cannot be read"),
        (compile_arguments("--train", "renamed.csv"), "rename the column that holds it to 'sentiment'"),
        (
            compile_arguments("--train", "partly.csv", metric="f1:positive"),
            "1 of 2 examples have no label in 'sentiment'",
        ),
        (compile_arguments("--out", "none/program.json"), "folder not found: none"),
        (compile_arguments("--out", "program"), "--out: must end in .json; got 'program'"),
        (
            compile_arguments("--max-calls", "3"),
            "--max-calls must be at least 27 for a search and a final comparison; got 3: increase --max-calls",
        ),
        (compile_arguments("--max-demos", "3"), "--max-demos needs --select"),
        (compile_arguments("--instructions", "propose"), "--instructions needs --select"),
        (
            compile_arguments("--select", "--instructions", "propose", "Be brief."),
            "propose must be the only value of --instructions",
        ),
        (
            compile_arguments("--select", "--prompt-model", "x"),
            "--prompt-model needs --instructions 'propose'; got None: pass --instructions 'propose', or omit --prompt",
        ),
        (
            compile_arguments("--select", "--instructions", "A", "B", program="reviews_app.py:Two"),
            "pass --instructions 'propose' or, in Python, PLFewShot(instructions={'first': [...]}), with names from",
        ),
        (
            compile_arguments("--auto", "paper", "--programs", "reviews_app.py:bare"),
            "--auto 'paper' cannot compare programs: compile without other programs, then pass the result and these "
            "programs to choose_program (plr-dspy choose on the command line)",
        ),
        (
            compile_arguments("--select", "--max-calls", "9", program="reviews_app.py:explaining"),
            "for 6 calls that bootstrap demos; got 9: increase --max-calls\n",
        ),
        (
            compile_arguments("--select", "--max-calls", "25", program="reviews_app.py:explaining"),
            "increase --max-calls, or use PLFewShot(candidates='labeled'), which makes no calls to get demos",
        ),
        (compile_arguments("--programs", "none.json"), "file not found: none.json"),
        (compile_arguments("--programs", "none.pkl"), "file not found: none.pkl"),
        (compile_arguments("--programs", "demos.pkl"), "path must end in .json; got 'demos.pkl': save the"),
        (compile_arguments("--programs", "train.csv"), "or FILE.json of a saved program"),
        (
            compile_arguments("--programs", "reviews_app.py:other"),
            "row 1 of train.jsonl must have the inputs ['text'] of programs['reviews_app.py:other'];",
        ),
        (
            CHOOSE_UNSAVEABLE,
            "--out cannot be written, because demo 2 of predictor 'self' has a value of type set",
        ),
        (
            CHOOSE_OTHER,
            "row 1 of train.jsonl must have the inputs ['text'] of programs['reviews_app.py:other'];",
        ),
        (CHOOSE_OTHER, "or add the missing names to with_inputs(...) (--inputs on the command line)"),
        (
            compile_arguments("--calibrate", "--signal", "score"),
            "omit --calibrate, or pass --signal 'auto'",
        ),
        (
            compile_arguments("--demos", "saved.json", program="reviews_app.py:calibrated"),
            "got an uncalibrated program: pass student.program",
        ),
        (compile_arguments("--demos", "demos.pkl"), "path must end in .json; got 'demos.pkl'"),
        (compile_arguments("--programs", "reviews_app.py:program"), "'reviews_app.py:program' twice"),
        (
            compile_arguments("--programs", "reviews_app.py:unsaveable"),
            "--out cannot be written, because demo 2 of predictor 'self' has a value",
        ),
        (compile_arguments("--lm", "hosted_vllm/some-model", "--adapter", "plain"), "--api-base"),
        (
            compile_arguments(*CHAT, "--signal", "logprobs", **PICKY),
            "Omit --signal 'logprobs' to search by scores",
        ),
        (compile_arguments(*CHAT, "--calibrate", **PICKY), "Omit --calibrate to search by scores"),
        (
            evaluate("--data", "train.jsonl", *ACCURACY, "--programs", "none.json"),
            "file not found: none.json: pass the path of a program saved with program.save",
        ),
        (evaluate("--data", "train.jsonl", *ACCURACY, "--programs", "train.jsonl"), "train.jsonl"),
        (CHOOSE_MISSING, "file not found: none.json"),
        (["report", "none.json"], "file not found: none.json"),
        (["report", "train.jsonl"], "not a plr_dspy report"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_user_errors_are_reported(folder, capsys, arguments, words):
    (folder / "broken_app.py").write_text("raise SystemExit(7)")
    (folder / "lazy_app.py").write_text("def __getattr__(name):\n    raise KeyError(name)\n")
    (folder / "json.py").write_text("")
    (folder / "sys.py").write_text("")
    (folder / "folder.json").mkdir()
    (folder / "demos.pkl").write_text("")
    save_two_demos("saved.json")
    (folder / "wide.csv").write_text("review,sentiment\nshort,\nlong, too,negative\n")
    (folder / "short.csv").write_text("review,sentiment\nshort\nlong,negative\n")
    (folder / "renamed.csv").write_text("review,label\nshort,positive\nlong,negative\n")
    (folder / "noted.csv").write_text("review,sentiment,notes\nshort,positive,\nlong,negative,\n")
    (folder / "partly.csv").write_text("review,sentiment\nshort,positive\nlong,\n")
    (folder / "latin.csv").write_bytes("review,sentiment\ncaf\xe9,negative\n".encode("latin-1"))
    (folder / "cut.jsonl").write_bytes('\ufeff{"review": "a\u2028b"}\r\n\n{"review": '.encode())
    try:
        code = cli.main(arguments)
    except SystemExit as refused:
        code = refused.code
    assert code == cli.USER_ERROR
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    messages = [line for line in error.splitlines() if "plr-dspy" in line]
    assert len(messages) <= 2
    assert error.endswith("".join(f"{line}\n" for line in messages))


OFFLINE = """
import dspy


class Echo(dspy.Module):
    def __init__(self):
        self.answer = dspy.Predict("question -> answer")
        self.answer.demos = [dspy.Example(question=str(n), answer=str(n)) for n in range(4)]

    def forward(self, question):
        return dspy.Prediction(answer=self.answer.demos[0]["answer"])


def accuracy(example, prediction, trace=None):
    print("a metric may print")
    return int(example.answer) % 4 == int(prediction.answer)


def broken(example, prediction, trace=None):
    raise BrokenPipeError("of the metric")


def disconnected(example, prediction, trace=None):
    raise ConnectionError("no route")


def mistaken(example, prediction, trace=None):
    return None + 1


def stopped(example, prediction, trace=None):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGINT)
    return 1.0
"""


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Create a new current folder with a program that calls no model."""
    (tmp_path / "offline_app.py").write_text(OFFLINE)
    rows = [{"question": f"q{n}", "answer": str(n)} for n in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("offline_app")


def offline_compile(metric):
    return (
        f"compile offline_app.py:Echo --metric offline_app.py:{metric} --train train.jsonl --inputs question "
        f"--lm openai/none --max-calls 60 --threads 2 --out {metric}.json"
    )


@pytest.mark.parametrize(
    ("metric", "code", "words"),
    [
        ("disconnected", cli.FAILED, "plr-dspy: ConnectionError: no route (on row "),
        ("mistaken", cli.FAILED, "in the metric: the last of "),
        ("broken", cli.FAILED, "plr-dspy: BrokenPipeError: of the metric"),
        ("stopped", cli.INTERRUPTED, "plr-dspy: interrupted"),
    ],
)
def test_exit_codes(offline, capsys, metric, code, words):
    assert cli.main(shlex.split(offline_compile(metric))) == code
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_the_command_quietly(offline, unbuffered):
    assert cli.main(shlex.split(f"{offline_compile('accuracy')} --report report.json")) == 0
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as unread:
        finished = subprocess.run(
            [sys.executable, "-m", "plr_dspy.cli", "report", "report.json"],
            stdout=unread,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
        )
    assert (finished.returncode, finished.stderr) == (cli.OUTPUT_CLOSED, "")


def test_commands_run_without_standard_output(monkeypatch):
    """Python sets `sys.stdout` to None if standard output is closed when Python starts."""
    monkeypatch.setattr(sys, "stdout", None)
    with printing():
        pass

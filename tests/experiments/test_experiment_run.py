"""A small grid on the real local model: made, killed, made again, spread over processes and a Ray cluster."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest
from brief import write_rows

from plr_dspy.cli import commands as cli
from plr_dspy.experiments.runs.protocol import Protocol
from plr_dspy.experiments.runs.results import Run, read_results
from plr_dspy.experiments.runs.runner import Experiment, Worker
from plr_dspy.experiments.runs.served_model import ServedModel

POOL, HELD_OUT = 4, 2
COMMON = ["--tasks", "mr", "--pool", str(POOL), "--test", str(HELD_OUT)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of the task "mr" that are read fast."""
    folder = tmp_path_factory.mktemp("data")
    for part in ("train", "test"):
        write_rows(folder / f"mr_{part}.jsonl")
    return folder


def run(data, out, *more):
    return cli.main(["experiment", "run", *COMMON, "--data-dir", str(data), "--out", str(out), *more])


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """Grids with all that the outputs need. The second has the same folder: DEmO takes its time, so it has one seed."""
    out = tmp_path_factory.mktemp("made")
    grid = ["--seeds", "1", "2", "--rankings", "3", "--ablations", "weighted", "--methods", "Static", "Ours"]
    for options in (grid, ["--seeds", "1", "--methods", "DEmO"]):
        assert run(data, out, "--num-demos", "3", "--cache", *options) == 0
    return out


def by_run(folder):
    return {result.run: result for result in read_results(folder / "results.jsonl")}


def test_every_run_has_its_line(made):
    results = by_run(made)
    methods = ["Static", "Ours", "PLR-4", "PLR-4 weighted", "Ranking"]
    expected = {Run("mr", 3, seed, method) for seed in (1, 2) for method in methods}
    assert set(results) == expected | {Run("mr", 3, 1, "DEmO")}
    for result in results.values():
        assert len(result.scores) == HELD_OUT
        assert result.settings["pool"] == POOL
        assert (result.orderings is None) == (result.run.method == "DEmO")
    assert results["mr", 3, 1, "Static"].orderings == ((0, 1, 2),)
    assert results["mr", 3, 1, "Static"].program_calls["total"] == 0


def test_equal_orders_have_equal_scores(made):
    """All methods meet the same demos and the same held-out examples."""
    results = by_run(made)
    for seed in (1, 2):
        scores = {}
        for result in results.values():
            if result.run.seed == seed and result.orderings is not None:
                assert scores.setdefault(result.orderings, result.scores) == result.scores


def test_tables_figures_and_ablations_are_written(made, tmp_path):
    for part, names in {
        "table": ["accuracy.md", "accuracy.tex", "accuracy.csv", "paired.md", "calls.csv"],
        "ablation": ["ablation.png", "ablation.md", "ablation.csv"],
        "figure": ["ranking.png", "accuracy_by_calls.png", "ranking.csv"],
    }.items():
        assert cli.main(["experiment", part, "--out", str(made), "--to", str(tmp_path / part)]) == 0
        for name in names:
            assert (tmp_path / part / name).stat().st_size > 0, name
    with (tmp_path / "table" / "accuracy.csv").open() as file:
        cells = {row["method"]: float(row["mean"]) for row in csv.DictReader(file) if row["task"] == "mr"}
    results = by_run(made)
    static = [results["mr", 3, seed, "Static"].accuracy for seed in (1, 2)]
    assert cells["Static"] == pytest.approx(sum(static) / 2 * 100) or cells["Static"] == pytest.approx(
        sum(static) / 2
    )
    assert "Ranking" not in cells


def test_a_dry_run_says_what_is_missing(data, made, capsys):
    options = ["--num-demos", "3", "--seeds", "1", "2", "3", "--methods", "Static", "Ours"]
    assert run(data, made, *options, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "6 runs, 2 of them without a result: " in out
    assert f"  Static: {HELD_OUT}\n" in out, "its held-out examples"
    assert set(by_run(made)) == {name for name in by_run(made) if name.seed < 3}


def test_no_run_makes_more_calls_than_it_said(data, made):
    experiment = Experiment(Protocol(pool=POOL, test=HELD_OUT), ServedModel(), folder=made, data_dir=data)
    with Worker(experiment) as worker:
        for name, result in by_run(made).items():
            held_out = 6 * HELD_OUT if name.method == "Ranking" else HELD_OUT
            assert result.program_calls["total"] + held_out <= worker.calls(name), name


def test_other_settings_need_another_folder(data, made, capsys):
    assert run(data, made, "--num-demos", "3", "--pool", "12") == cli.USER_ERROR
    assert f"pool={POOL} there, 12 now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--methods", "PLR"], "method must be one of"),
        (["--pool", "100000"], "ask for fewer"),
        (["--test", "100000"], "ask for fewer"),
        (["--num-demos", "1"], "num_demos"),
        (["--rankings", "8"], "rankings"),
        (["--data-dir", "nowhere"], "nowhere"),
        (["--model", "hosted_vllm/some"], "api_bases"),
        (["--model", "openai/some"], "api_bases"),
    ],
)
def test_bad_arguments(data, tmp_path, capsys, options, words):
    assert run(data, tmp_path, "--num-demos", "3", "--seeds", "1", "--methods", "Static", *options) in (1, 2)
    captured = capsys.readouterr()
    assert words in captured.err + captured.out
    assert "Traceback" not in captured.err


def test_no_results_is_a_clear_error(tmp_path, capsys):
    for part in ("table", "ablation", "figure"):
        assert cli.main(["experiment", part, "--out", str(tmp_path)]) == cli.USER_ERROR
        assert "experiment run" in capsys.readouterr().err


def test_killed_and_run_again(data, tmp_path):
    options = ["--num-demos", "3", "--seeds", "1", "--methods", "Static", "PLR-1"]
    command = [
        *(sys.executable, "-m", "plr_dspy.cli", "experiment", "run", *COMMON),
        *("--data-dir", str(data), "--out", str(tmp_path), *options),
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    cells = tmp_path / "calls" / "mr" / "k3" / "seed1" / "PLR-1" / "cells.jsonl"
    deadline = time.monotonic() + 240
    while not (cells.exists() and cells.read_bytes().count(b'"cell"') > 8):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = (tmp_path / "results.jsonl").read_bytes()
    paid = cells.read_bytes()
    assert before.count(b"\n") == 1
    assert run(data, tmp_path, *options) == 0
    after = (tmp_path / "results.jsonl").read_bytes()
    assert after.startswith(before), "what had ended was not made again"
    assert after.count(b"\n") == 2
    whole = paid[: paid.rfind(b"\n") + 1]
    assert cells.read_bytes().startswith(whole), "no finished call was made again"


@pytest.mark.parametrize(
    "spread", [["--jobs", "2"], ["--ray", "local", "--jobs", "2"]], ids=["processes", "ray"]
)
def test_spread_out_the_results_are_the_same(data, made, tmp_path, spread):
    options = ["--num-demos", "3", "--seeds", "1", "2", "--methods", "Static", "Ours"]
    before = signal.getsignal(signal.SIGTERM)
    assert run(data, tmp_path, *options, *spread) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    here, there = by_run(made), by_run(tmp_path)
    assert len(there) == 4
    for name, result in there.items():
        assert (result.orderings, result.scores) == (here[name].orderings, here[name].scores)
        assert result.program_calls == here[name].program_calls

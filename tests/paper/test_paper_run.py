"""The commands on a small grid, partly with the real local model: results, tables, figures and errors."""

import csv
import itertools
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
from brief import write_task
from fakes import PlainLabels, lm_of

from paper.commands import FAILED, USER_ERROR, main
from paper.model import ServedModel
from paper.protocol import PROBABILITY, Experiment, Run
from paper.results import RESULTS, read_results
from paper.runner import count_calls

POOL = 4
HELD_OUT = 2
COMMON = ["--tasks", "mr", "--pool", str(POOL), "--test", str(HELD_OUT)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("data"))


def run(data, out, *more):
    return main(["run", *COMMON, "--data-dir", str(data), "--out", str(out), *more])


@pytest.fixture(scope="module")
def grid_folder(data, tmp_path_factory):
    """Return a folder with the results of two grids."""
    out = tmp_path_factory.mktemp("made")
    engine = PlainLabels(lean=0.5)
    grid = ["--seeds", "1", "2", "--ablations", "weighted", "--methods", "Static", "Ours"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServedModel, "open", lambda self, **_: nullcontext(lambda max_tokens: lm_of(engine)))
        assert run(data, out, "--num-demos", "2", *grid) == 0
    assert engine.requests > 0
    assert run(data, out, "--num-demos", "2", "--cache", "--seeds", "1", "--methods", "DEmO") == 0
    return out


def by_run(folder):
    return {result.run: result for result in read_results(folder / RESULTS)}


def test_every_run_has_a_result_and_equal_orders_have_equal_scores(grid_folder):
    results = by_run(grid_folder)
    methods = ["Static", "Ours", "PLR-4", "PLR-4 weighted"]
    expected = {Run("mr", 2, 1, "DEmO")}
    for method in methods:
        expected |= {Run("mr", 2, seed, method) for seed in (1, 2)}
    assert set(results) == expected
    scores = {}
    for result in results.values():
        assert len(result.scores) == HELD_OUT
        assert result.settings["pool"] == POOL
        assert (result.orderings is None) == (result.method == "DEmO")
        if result.orderings is not None:
            assert scores.setdefault((result.seed, result.orderings), result.scores) == result.scores
    static = results["mr", 2, 1, "Static"]
    assert (static.orderings, static.program_calls["total"]) == (((0, 1),), 0)


def test_tables_are_written(grid_folder, tmp_path, capsys):
    assert main(["table", "--out", str(grid_folder), "--to", str(tmp_path)]) == 0
    tables = ("accuracy", "calls", "paired", "ablation")
    names = [*(f"{table}.md" for table in tables), *(f"{table}.csv" for table in tables)]
    assert set(names) <= {Path(line).name for line in capsys.readouterr().out.splitlines()}
    assert all((tmp_path / name).stat().st_size > 0 for name in names)
    with (tmp_path / "accuracy.csv").open() as file:
        cells = {row["method"]: float(row["mean"]) for row in csv.DictReader(file) if row["task"] == "mr"}
    results = by_run(grid_folder)
    static = [results["mr", 2, seed, "Static"].accuracy for seed in (1, 2)]
    assert cells["Static"] == pytest.approx(50 * sum(static))


@pytest.fixture(scope="module")
def ranked_folder(data, tmp_path_factory):
    """Return a folder with the results of runs that scored all orders."""
    out = tmp_path_factory.mktemp("ranked")
    engine = PlainLabels(lean=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServedModel, "open", lambda self, **_: nullcontext(lambda max_tokens: lm_of(engine)))
        ablation = ["--ablations", "probability", "--methods"]
        assert run(data, out, "--num-demos", "3", "--seeds", "1", "2", *ablation) == 0
    return out


def test_all_orders_are_scored_with_their_probabilities(data, ranked_folder):
    results = by_run(ranked_folder)
    assert set(results) == {Run("mr", 3, seed, method) for seed in (1, 2) for method in PROBABILITY}
    experiment = Experiment(ranked_folder, data, pool=POOL, test=HELD_OUT)
    for name, result in results.items():
        ranking = result.ranking
        assert set(ranking.orders) == set(itertools.permutations(range(3)))
        assert sum(map(math.exp, ranking.log_probabilities)) == pytest.approx(1)
        assert (
            dict(zip(ranking.orders, ranking.accuracies, strict=True))[result.orderings[0]]
            == result.accuracy
        )
        assert result.program_calls["total"] + 7 * HELD_OUT <= count_calls(experiment, name)
    for seed in (1, 2):
        first, second = (results["mr", 3, seed, method].ranking for method in PROBABILITY)
        assert first.accuracies == second.accuracies


def test_figures_are_drawn(ranked_folder, tmp_path, capsys):
    assert main(["figure", "--out", str(ranked_folder), "--to", str(tmp_path)]) == 0
    names = ["probability.png", "probability.csv"]
    assert [Path(line).name for line in capsys.readouterr().out.splitlines()] == names
    assert all((tmp_path / name).stat().st_size > 0 for name in names)


def test_a_dry_run_prints_the_number_of_missing_runs_and_calls(data, grid_folder, capsys):
    options = ["--num-demos", "2", "--seeds", "1", "2", "3", "--methods", "Static", "Ours"]
    assert run(data, grid_folder, *options, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "6 runs, 2 of them without a result: " in out
    assert f"  Static: {HELD_OUT}\n" in out, "Static needs only calls on held-out examples"
    assert set(by_run(grid_folder)) == {name for name in by_run(grid_folder) if name.seed < 3}


def test_no_run_makes_more_calls_than_estimated(data, grid_folder):
    experiment = Experiment(grid_folder, data, pool=POOL, test=HELD_OUT)
    for name, result in by_run(grid_folder).items():
        assert result.program_calls["total"] + HELD_OUT <= count_calls(experiment, name), name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--methods", "PLR"], "method must be one of"),
        (["--pool", "100000"], "Reduce pool and demos"),
        (["--num-demos", "1"], "num_demos must be at least 2"),
        (["--num-demos", "7", "--ablations", "probability"], "num_demos must be at most 6"),
        (["--data-dir", "nowhere"], "nowhere"),
        (["--model", "hosted_vllm/some"], "api_bases"),
        (["--api-base", "http://127.0.0.1:9/v1"], "api_bases"),
        (["--api-key-env", "NOSUCH"], "'NOSUCH' is not set"),
        *(([f"--{name}", "0"], f"--{name}") for name in ("threads", "jobs")),
        (["--tasks", "juggling"], "--tasks"),
    ],
)
def test_bad_arguments_are_rejected(data, tmp_path, capsys, options, words):
    try:
        code = run(data, tmp_path, "--num-demos", "2", "--seeds", "1", "--methods", "Static", *options)
    except SystemExit as error:
        code = error.code
    assert code in (FAILED, USER_ERROR)
    captured = capsys.readouterr()
    assert words in captured.err + captured.out
    assert "Traceback" not in captured.err


def test_the_error_without_the_hub_advises_passing_a_folder(tmp_path, capsys):
    options = [
        "--tasks",
        "subj",
        "--num-demos",
        "2",
        "--seeds",
        "1",
        "--methods",
        "Static",
        "--out",
        str(tmp_path),
    ]
    assert main(["run", *options, "--dry-run"]) == USER_ERROR
    error = capsys.readouterr().err
    assert "hub:SetFit/subj:train cannot be read from the Hugging Face hub" in error
    assert "--data-dir" in error


@pytest.mark.parametrize("content", [None, ""])
def test_a_folder_without_results_is_an_error(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / RESULTS).write_text(content)
    assert main(["table", "--out", str(tmp_path)]) == USER_ERROR
    assert "Run python examples/paper run" in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if path.name != RESULTS]

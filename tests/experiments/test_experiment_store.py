"""The file of results: what is there is not made again, whatever happened while it was written."""

import multiprocessing

import orjson
import pytest
from result_records import result

from plr_dspy.experiments.runs.grid import run_grid
from plr_dspy.experiments.runs.results import Run
from plr_dspy.experiments.runs.served_model import ServedModel
from plr_dspy.experiments.runs.store import Store, results_path

RUNS = [Run("mr", 4, seed, method) for seed in (1, 2) for method in ("Static", "Ours")]
SETTINGS = {"pool": 20, "model": "local"}


def result_of(run, **changes):
    return result(*run, [1.0, 0.0], settings=SETTINGS, **changes)


class FakeExperiment:
    """Stands for an experiment: `run_grid` reads its folder, settings and model only."""

    served_model, data_dir = ServedModel(), None

    def __init__(self, folder, settings=SETTINGS):
        self.folder = folder
        self._settings = settings

    def settings(self):
        return self._settings


def making(made, failing=()):
    """An executor that notes what it makes."""

    def executor(experiment, runs):
        for run in runs:
            made.append(run)
            yield run, ValueError("no luck") if run in failing else result_of(run)

    return executor


def test_what_is_there_is_not_made_again(tmp_path):
    made = []
    first = run_grid(FakeExperiment(tmp_path), RUNS[:3], executor=making(made))
    second = run_grid(FakeExperiment(tmp_path), RUNS, executor=making(made))
    assert made == RUNS
    assert (first.there, first.made, second.there, second.made) == (0, 3, 3, 1)
    with Store(tmp_path, SETTINGS) as store:
        assert list(store.done) == RUNS
        assert store.done[RUNS[0]].accuracy == 0.5


def test_nothing_is_opened_where_nothing_is_missing(tmp_path):
    run_grid(FakeExperiment(tmp_path), RUNS, executor=making([]))

    def opened(experiment, runs):
        raise AssertionError("the executor was asked for nothing")

    assert run_grid(FakeExperiment(tmp_path), RUNS, executor=opened).there == 4


def test_a_run_that_fails_leaves_no_result_and_is_made_again(tmp_path):
    progress = run_grid(FakeExperiment(tmp_path), RUNS, executor=making([], failing=RUNS[1:2]))
    assert progress.made == 3
    assert str(progress.failed[RUNS[1]]) == "no luck"
    made = []
    run_grid(FakeExperiment(tmp_path), RUNS, executor=making(made))
    assert made == RUNS[1:2]


def test_a_dead_server_ends_the_experiment(tmp_path):
    made = []
    with pytest.raises(ValueError, match="no luck"):
        run_grid(FakeExperiment(tmp_path), RUNS, executor=making(made, failing=RUNS))
    assert made == RUNS[:3]


def test_a_line_that_was_cut_off_is_made_again_and_spoils_nothing(tmp_path):
    run_grid(FakeExperiment(tmp_path), RUNS[:2], executor=making([]))
    path = results_path(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    made = []
    run_grid(FakeExperiment(tmp_path), RUNS, executor=making(made))
    assert made == RUNS[1:]
    assert [orjson.loads(line)["method"] for line in path.read_bytes().splitlines()] == ["Static", "Ours"] * 2


def test_a_last_line_without_its_end_is_kept(tmp_path):
    """An editor may have taken it."""
    run_grid(FakeExperiment(tmp_path), RUNS[:2], executor=making([]))
    path = results_path(tmp_path)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    made = []
    run_grid(FakeExperiment(tmp_path), RUNS, executor=making(made))
    assert made == RUNS[2:]
    with Store(tmp_path, SETTINGS) as store:
        assert list(store.done) == RUNS


def test_results_of_other_settings_are_refused(tmp_path):
    run_grid(FakeExperiment(tmp_path), RUNS, executor=making([]))
    other = FakeExperiment(tmp_path, {"pool": 40, "model": "local"})
    with pytest.raises(ValueError, match=r"pool=20 there, 40 now.*another folder"):
        run_grid(other, RUNS, executor=making([]))


def test_a_broken_record_is_not_written(tmp_path):
    with Store(tmp_path, SETTINGS) as store, pytest.raises(ValueError, match="accuracy"):
        store.add(result_of(RUNS[0], accuracy=0.9))
    assert not results_path(tmp_path).exists()


def _hold(folder, held, leave):
    with Store(folder, SETTINGS):
        held.set()
        leave.wait(60)


def test_one_process_at_a_time(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, leave = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, leave))
    other.start()
    try:
        assert held.wait(60)
        with pytest.raises(RuntimeError, match="another process"), Store(tmp_path, SETTINGS):
            pass
    finally:
        leave.set()
        other.join()
    with Store(tmp_path, SETTINGS):
        pass

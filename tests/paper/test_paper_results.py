"""The file of results: finished runs are not repeated, and invalid results are rejected."""

import json

import pytest
from result_records import record, result

from paper.protocol import Experiment, Run
from paper.results import RESULTS, open_store, read_results
from paper.runner import run_grid

RUNS = [
    Run("mr", 4, 1, "Static"),
    Run("mr", 4, 1, "Ours"),
    Run("mr", 4, 2, "Static"),
    Run("mr", 4, 2, "Ours"),
]
SETTINGS = Experiment(None, pool=20).settings()


def making(runs_made, failing=()):
    def engine(experiment, runs):
        for run in runs:
            runs_made.append(run)
            one = result(*run, [1.0, 0.0], settings=SETTINGS)
            yield run, ValueError("no reply") if run in failing else one

    return engine


def made_on(folder, runs=RUNS, failing=()):
    runs_made = []
    outcome = run_grid(Experiment(folder, pool=20), runs, engine=making(runs_made, failing))
    return runs_made, outcome


class TestGrid:
    def test_finished_runs_are_not_repeated_and_results_with_other_settings_are_rejected(self, tmp_path):
        first = made_on(tmp_path, RUNS[:3])
        second = made_on(tmp_path)
        assert first[0] + second[0] == RUNS
        assert (first[1].num_known, first[1].num_made, second[1].num_known, second[1].num_made) == (
            0,
            3,
            3,
            1,
        )
        with open_store(tmp_path, SETTINGS) as store:
            assert list(store) == RUNS
        made_on(tmp_path)
        with pytest.raises(ValueError, match=r"pool is 20 in the file, but 40 now.*another folder"):
            run_grid(Experiment(tmp_path, pool=40), RUNS, engine=making([]))

    def test_a_failed_run_has_no_result_and_is_repeated(self, tmp_path):
        _, outcome = made_on(tmp_path, failing=RUNS[1:2])
        assert outcome.num_made == 3
        assert str(outcome.failed[RUNS[1]]) == "no reply"
        assert made_on(tmp_path)[0] == RUNS[1:2]

    def test_a_dead_server_ends_the_experiment(self, tmp_path):
        runs_made = []
        with pytest.raises(ValueError, match="no reply"):
            run_grid(Experiment(tmp_path, pool=20), RUNS, engine=making(runs_made, failing=RUNS))
        assert runs_made == RUNS[:3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_demos": True}, "num_demos\n"),
        ({"accuracy": 0.9}, "accuracy must be the mean of scores, 0.500000; got 0.9"),
        ({"scores": [1.0, float("nan")]}, "scores.1\n"),
        ({"program_calls": {"search": 3}}, "program_calls must have a 'total'"),
    ],
)
def test_errors_name_invalid_fields(fields, message):
    with pytest.raises(ValueError, match=message):
        result(**fields)


def written(path, *lines, end="\n"):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return path


class TestFiles:
    def test_all_lines_are_read(self, tmp_path):
        for end in ("\n", ""):
            path = written(tmp_path / RESULTS, record(seed=1), "", record(seed=2), end=end)
            assert [result.seed for result in read_results(path)] == [1, 2]
        assert read_results(written(tmp_path / RESULTS, end="")) == []

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            (
                [record(), "", '{"task": "m', record()],
                r"(?s)line 3 of .*jsonl is not a valid result: .*Invalid JSON",
            ),
            ([record(), '{"task": "m'], "line 2"),
            ([record(), record(seed="2")], r"(?s)line 2 of .*seed.*Delete this line"),
            ([[1, 2]], "line 1"),
        ],
    )
    def test_errors_name_the_number_of_an_invalid_line(self, tmp_path, lines, message):
        with pytest.raises(ValueError, match=message):
            read_results(written(tmp_path / RESULTS, *lines))

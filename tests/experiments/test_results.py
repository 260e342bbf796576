"""Records of runs: what is read, and what is refused."""

import json
import logging

import pytest
from result_records import record, result

from plr_dspy.experiments.analysis.frames import frame_of, setting_notes
from plr_dspy.experiments.names import METHODS
from plr_dspy.experiments.runs.results import Result, read_results


def write(path, *lines, end="\n"):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return path


class TestRecords:
    def test_what_a_record_says_is_read(self):
        result = Result.from_dict(
            record(task="trec", num_demos=16, seed=3, method="PLR-4", scores=[1.0, 0.5, 0.0])
        )
        assert result.run == ("trec", 16, 3, "PLR-4")
        assert result.accuracy == 0.5
        assert result.scores == (1.0, 0.5, 0.0)
        assert result.orderings == ((1, 0),)
        assert result.program_calls == {"total": 100}

    def test_further_fields_are_left_aside(self):
        assert Result.from_dict(record(host="a", notes=["b"])) == Result.from_dict(record())

    def test_orderings_and_tokens_may_be_unknown(self):
        result = Result.from_dict(record(orderings=None, tokens={}))
        assert result.orderings is None
        assert result.tokens == {}

    @pytest.mark.parametrize("name", sorted(record()))
    def test_a_missing_field_is_named(self, name):
        data = record()
        del data[name]
        with pytest.raises(ValueError, match=f"{name} is missing"):
            Result.from_dict(data)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"schema": 2}, "schema: .*1; got 2"),
            ({"num_demos": "8"}, "num_demos: .*got '8'"),
            ({"num_demos": 0}, "num_demos: .*got 0"),
            ({"num_demos": True}, "num_demos: .*got True"),
            ({"seed": 1.5}, "seed: .*got 1.5"),
            ({"method": ""}, "method: .*got ''"),
            ({"accuracy": 50.0}, "accuracy: .*got 50.0"),
            ({"accuracy": float("nan")}, "accuracy: .*got nan"),
            ({"accuracy": 0.9}, "accuracy must be the mean of scores, 0.500000; got 0.9"),
            ({"scores": []}, "scores: "),
            ({"scores": [1.0, None]}, r"scores.1: .*got None"),
            ({"scores": [1.0, float("nan")]}, r"scores.1: .*got nan"),
            ({"program_calls": {"search": 3}}, "program_calls must have a 'total'"),
            ({"program_calls": {"total": -1}}, "program_calls.total: .*got -1"),
            ({"seconds": -1.0}, "seconds: .*got -1.0"),
        ],
    )
    def test_what_cannot_be_right_is_named(self, fields, message):
        with pytest.raises(ValueError, match=message):
            Result.from_dict({**record(), **fields})

    @pytest.mark.parametrize("data", [[1, 2], 3, None, "mr"])
    def test_what_is_no_record(self, data):
        with pytest.raises(ValueError, match="broken result record"):
            Result.from_dict(data)


class TestFiles:
    def test_all_lines_are_read(self, tmp_path):
        path = write(tmp_path / "results.jsonl", record(seed=1), "", record(seed=2))
        assert [result.seed for result in read_results(path)] == [1, 2]

    def test_a_line_that_a_crash_cut_off_is_skipped_with_a_warning(self, tmp_path, caplog):
        whole = json.dumps(record(seed=2))
        for cut in (1, len(whole) // 2, len(whole) - 1):
            path = write(tmp_path / "results.jsonl", record(seed=1), whole[:cut], end="")
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert [result.seed for result in read_results(path)] == [1]
            assert "line 2 was cut off" in caplog.text

    def test_half_a_letter_at_the_end_is_a_cut_too(self, tmp_path, caplog):
        path = write(tmp_path / "results.jsonl", record(seed=1))
        path.write_bytes(path.read_bytes() + b'{"task": "\xc3')
        assert len(read_results(path)) == 1
        assert "line 2" in caplog.text

    def test_a_whole_last_line_needs_no_line_end(self, tmp_path, caplog):
        path = write(tmp_path / "results.jsonl", record(seed=1), record(seed=2), end="")
        assert [result.seed for result in read_results(path)] == [1, 2]
        assert not caplog.text

    def test_a_broken_line_in_the_middle_is_an_error_with_its_number(self, tmp_path):
        path = write(tmp_path / "results.jsonl", record(seed=1), "", '{"task": "m', record(seed=2))
        with pytest.raises(ValueError, match=r"line 3 of .*results.jsonl is no JSON"):
            read_results(path)

    def test_a_broken_last_line_with_a_line_end_is_an_error(self, tmp_path):
        path = write(tmp_path / "results.jsonl", record(seed=1), '{"task": "m')
        with pytest.raises(ValueError, match="line 2"):
            read_results(path)

    def test_a_wrong_record_is_an_error_with_its_number_wherever_it_stands(self, tmp_path):
        path = write(tmp_path / "results.jsonl", record(seed=1), record(seed="2"), end="")
        with pytest.raises(ValueError, match=r"line 2 of .*seed"):
            read_results(path)

    def test_an_empty_file_holds_no_results(self, tmp_path):
        assert read_results(write(tmp_path / "results.jsonl", end="")) == []


class TestExperiments:
    def test_runs_are_in_the_order_of_the_grid(self):
        names = ["Zeta", "Ours", "DEmO", "Alpha", "Static"]
        runs = frame_of([result(method=name, task=task) for task in ("subj", "mr", "mine") for name in names])
        assert list(runs.method[:5]) == ["Static", "DEmO", "Ours", "Alpha", "Zeta"]
        assert list(runs.task.unique()) == ["mr", "subj", "mine"]

    def test_the_grid_has_each_method_once(self):
        assert len(set(METHODS)) == len(METHODS) == 12

    @pytest.mark.parametrize(
        ("second", "message"),
        [
            ({"model": "other"}, "one model"),
            ({"format": "chat"}, "one prompt format"),
            ({"method": "Static"}, "two of mr"),
            ({"scores": [1.0, 1.0, 0.0]}, "3 scores of .* and 2 of"),
            ({"num_demos": 4, "scores": [1.0, 1.0, 0.0]}, "3 scores of .* and 2 of"),
        ],
    )
    def test_what_cannot_stand_in_one_table(self, second, message):
        with pytest.raises(ValueError, match=message):
            frame_of([result(), result(**{"method": "Ours", **second})])

    def test_no_results(self):
        with pytest.raises(ValueError, match="at least one record"):
            frame_of([])

    def test_settings_that_differ_are_named(self):
        results = [Result.from_dict(record(settings={"pool": pool, "test": 200})) for pool in (1000, 100)]
        assert "pool" in setting_notes(results)[0]
        assert "test" not in setting_notes(results)[0]
        assert setting_notes(results[:1] * 2) == []

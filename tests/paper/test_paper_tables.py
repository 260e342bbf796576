"""Tables of the results in Markdown and CSV, compared with scipy and with calculations by hand."""

import csv
import io
import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_records import result, runs
from scipy import stats

from paper import tables
from paper.tables import frame_of, grouped_interval, holm
from plr_dspy.statistics.comparisons import mean_interval, paired_interval

QWEN = "Qwen2.5-7B-Instruct"
LLAMA = "Llama-3.1-8B-Instruct"


def rows(table):
    return list(csv.DictReader(io.StringIO(table.to_csv())))


def row(table, **key):
    wanted = {name: str(value) for name, value in key.items()}
    (only,) = [line for line in rows(table) if wanted.items() <= line.items()]
    return only


def numbers(line, *names):
    return [float(line[name]) for name in names]


def texts(line, *names):
    return [line[name] for name in names]


def ranks(table, task="mr"):
    return {line["method"]: line["rank"] for line in rows(table) if line["task"] == task}


def line_of(table, name, block=0):
    part = table.to_markdown().split("### ")[block + 1]
    (line,) = [line for line in part.splitlines() if line.startswith(f"| {name} ")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def accuracy(*parts):
    return tables.accuracy_table(frame_of([*itertools.chain(*parts)]))


def paired(*parts):
    return tables.paired_table(frame_of([*itertools.chain(*parts)]))


class TestFrame:
    def test_known_tasks_and_methods_come_first(self):
        methods = ["Zeta", "Ours", "DEmO", "Alpha", "Static"]
        pairs = itertools.product(("subj", "mr", "mine"), methods)
        frame = frame_of([result(method=method, task=task) for task, method in pairs])
        assert list(frame.method[:5]) == ["Static", "DEmO", "Ours", "Alpha", "Zeta"]
        assert list(frame.task.unique()) == ["mr", "subj", "mine"]

    @pytest.mark.parametrize(
        ("second", "message"),
        [
            ({"model": "other"}, "one model"),
            ({"format": "chat"}, "one prompt format"),
            ({"method": "Static"}, "two lines for mr"),
            ({"num_demos": 4, "scores": [1.0, 1.0, 0.0]}, "same examples"),
            ({"data": {"pool": "b"}}, "same examples"),
        ],
    )
    def test_results_that_are_not_comparable_are_rejected(self, second, message):
        first = result(data={"pool": "a"})
        second = {"method": "Ours", "data": {"pool": "a"}, **second}
        with pytest.raises(ValueError, match=message):
            frame_of([first, result(**second)])


class TestAccuracy:
    def test_mean_and_interval_agree_with_hand_calculation_and_one_seed_has_no_interval(self):
        table = accuracy(runs("Static", [10, 12, 14]))
        cell = row(table, task="mr", method="Static")
        half = 4.302652729911275 * 10 / math.sqrt(3)
        expected = pytest.approx([60, 60 - half, 60 + half])
        assert numbers(cell, "mean", "low", "high") == expected
        assert texts(cell, "seeds", "num_demos") == ["3", "8"]
        assert line_of(table, "Static") == ["60.0 ± 24.8"]
        table = accuracy(runs("Static", [10]))
        cell = row(table, task="mr")
        assert texts(cell, "mean", "low", "high", "seeds") == ["50.0", "", "", "1"]
        assert line_of(table, "Static") == ["50.0"]

    def test_best_three_are_marked_and_ties_share_a_mark(self):
        counts = {"Static": [5], "Top-K": [14], "PLR-1": [9], "Ours": [12]}
        table = accuracy(*map(runs, counts, counts.values()))
        assert ranks(table) == {"Static": "4", "Top-K": "1", "PLR-1": "3", "Ours": "2"}
        cells = [line_of(table, name)[0] for name in counts]
        assert cells == ["25.0", "**70.0**", "*45.0*", "<ins>60.0</ins>"]
        counts = {"Static": [8, 10], "Top-K": [9, 9], "PLR-1": [8, 8], "Ours": [1, 1]}
        table = accuracy(*map(runs, counts, counts.values()))
        assert ranks(table) == {"Static": "1", "Top-K": "1", "PLR-1": "3", "Ours": "4"}

    def test_methods_with_missing_seeds_are_marked_and_not_ranked(self):
        table = accuracy(runs("Static", [10] * 3), runs("Top-K", [8] * 3), runs("Ours", [20, None, 20]))
        assert ranks(table) == {"Static": "1", "Top-K": "2", "Ours": ""}
        assert line_of(table, "Ours") == ["100.0 ± 0.0†"]
        other_seeds = accuracy(runs("Static", [10, 10, None]), runs("Ours", [None, 12, 12]))
        assert ranks(other_seeds) == {"Static": "", "Ours": ""}
        one_seed = accuracy(runs("Static", [10, 10]), runs("Ours", [12]))
        assert ranks(one_seed) == {"Static": "", "Ours": ""}

    def test_the_average_over_tasks_uses_only_seeds_with_all_tasks(self):
        # The averages by seed are (50 + 70) / 2 = 60 and (60 + 90) / 2 = 75.
        table = accuracy(runs("Static", [10, 12]), runs("Static", [14, 18], task="subj"))
        cell = row(table, task="average")
        assert float(cell["mean"]) == pytest.approx(67.5)
        interval = mean_interval([60, 75])
        assert numbers(cell, "low", "high") == pytest.approx([*interval])
        base = [runs("Static", [10] * 3, task=task) for task in ("mr", "subj")]
        table = accuracy(*base, runs("Ours", [10, 20, None]), runs("Ours", [10, 20, 20], task="subj"))
        cell = row(table, task="average", method="Ours")
        assert float(cell["mean"]) == 75
        assert texts(cell, "seeds", "rank") == ["2", ""]
        table = accuracy(*base, runs("Top-K", [20] * 3))
        assert line_of(table, "Top-K") == ["**100.0 ± 0.0**", "", ""]
        apart = accuracy(runs("Static", [10, None]), runs("Static", [None, 10], task="subj"))
        assert "average" not in {line["task"] for line in rows(apart)}


class TestPaired:
    def test_difference_over_the_pooled_examples(self):
        records = [
            result("mr", 8, 1, "Static", [1.0, 1.0, 0.0, 0.0]),
            result("mr", 8, 2, "Static", [1.0, 0.0, 0.0, 0.0]),
            result("mr", 8, 1, "Ours", [1.0, 0.0, 1.0, 1.0]),
            result("mr", 8, 2, "Ours", [1.0, 1.0, 1.0, 0.0]),
        ]
        cell = row(paired(records), task="mr")
        # The differences are 0, -1, 1, 1 and 0, 1, 1, 0, with a mean of 3/8.
        low, high = paired_interval([0, -100, 100, 100, 0, 100, 100, 0])
        assert numbers(cell, "mean", "low", "high") == pytest.approx([37.5, low, high])
        assert cell["seeds"] == "2.0"
        assert float(cell["examples"]) == 8

    def test_runs_that_share_examples_do_not_count_as_independent(self):
        once = [*runs("Static", [10, 10, 10, 10]), *runs("Ours", [12, 14, 9, 15])]
        more = [replace(run, num_demos=16) for run in once]
        one = row(paired(once), task="all")
        two = row(paired(once, more), task="all")
        assert float(one["runs"]) == 4
        assert float(two["runs"]) == 8
        names = ("mean", "low", "high", "p")
        assert numbers(one, *names) == pytest.approx(numbers(two, *names))

    def test_only_common_runs_are_compared_and_p_values_are_corrected_over_methods(self):
        table = paired(
            runs("Static", [10, 10, None]), runs("Ours", [12, None, 20]), runs("PLR-1", [11, 11, 11])
        )
        ours = row(table, task="mr", method="Ours")
        assert float(ours["mean"]) == pytest.approx(10)
        assert float(ours["seeds"]) == 1
        assert "†" in line_of(table, "Ours")[0]
        assert "Methods differ in their runs" in table.to_markdown()
        same = paired(*(runs(name, [10, 11]) for name in ("Static", "Top-K", "Ours")))
        assert "same runs" not in same.to_markdown()
        none = paired(runs("Static", [10]), runs("Top-K", [10]), runs("Ours", [10], num_demos=4))
        assert "No runs in common with Static: Ours" in none.to_markdown()
        assert {line["method"] for line in rows(none)} == {"Top-K"}
        table = paired(runs("Static", [10] * 6), runs("Top-K", [9, 11] * 3), runs("Ours", [15] * 6))
        ours = row(table, task="all", method="Ours")
        assert float(ours["p_holm"]) == pytest.approx(2 * 2 / 64)
        assert float(row(table, task="all", method="Top-K")["p_holm"]) == 1.0


class TestSignificance:
    @given(st.lists(st.integers(-9, 9), min_size=2, max_size=9))
    @settings(max_examples=25, deadline=None)
    def test_sign_flip_p_values_equal_those_of_enumerating_all_flips(self, differences):
        flips = np.array([*itertools.product((-1, 1), repeat=len(differences))])
        sums = flips @ np.array(differences)
        share = np.mean(np.abs(sums) >= abs(sum(differences)))
        assert tables.sign_flip_test([[d] for d in differences]) == pytest.approx(share)

    def test_intervals_of_groups_agree_with_hand_calculation(self):
        values = [3.0, 1.0, -2.0, 8.0]
        assert grouped_interval([[v] for v in values]) == pytest.approx(mean_interval(values))
        even = grouped_interval([[1.0, 3.0], [5.0, 9.0], [0.0, 1.0]])
        assert even == pytest.approx(mean_interval([2.0, 7.0, 0.5]))
        # The groups (1, 3) and (8) have mean 4, sums of residuals -4 and +4, and variance 2/1 * (16 + 16) / 9.
        half = stats.t.ppf(0.975, 1) * math.sqrt(64 / 9)
        assert grouped_interval([[1.0, 3.0], [8.0]]) == pytest.approx((4 - half, 4 + half))

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
    def test_holm_lies_between_no_correction_and_bonferroni(self, p_values):
        for p, corrected in zip(p_values, holm(p_values), strict=True):
            assert p <= corrected <= min(1.0, len(p_values) * p)
        # The sorted values .01, .02, .03 and .5, multiplied by 4, 3, 2 and 1, are .04, .06, .06 and .5.
        assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])


def test_mean_costs_are_over_runs_with_known_costs():
    def costing(seed, calls):
        tokens = {"prompt": calls * 10}
        return result(seed=seed, program_calls={"total": calls}, tokens=tokens, seconds=calls / 8)

    unknown = result(seed=3, tokens={}, program_calls={"total": 1})
    table = tables.calls_table(frame_of([costing(1, 100), costing(2, 301), unknown]))
    (line,) = rows(table)
    assert numbers(line, "calls", "prompt tokens") == [134, 2005]
    assert line["completion tokens"] == ""
    assert line_of(table, "Static") == ["134", "2,005", "", "17", "3"]


def test_our_accuracies_are_compared_with_published_ones():
    table = tables.published_table(frame_of(runs("Static", [10, 12], model="local")))
    heading = "8 demos: ours SmolLM2-135M (local); paper {}, 5 seeds"
    headings = re.findall("^### (.+)$", table.to_markdown(), re.M)
    assert headings == [heading.format(QWEN), heading.format(LLAMA)]
    assert line_of(table, "Static") == ["55.0 / 91.1 / -36.1"]
    line = row(table, published_model=QWEN)
    assert texts(line, "seeds", "published_seeds", "method") == ["2", "5", "Static"]
    expected = pytest.approx([55, 91.1, -36.1])
    assert numbers(line, "mean", "published", "difference") == expected
    assert "mostly reflects the models" in table.to_markdown()

"""The paper's tables: numbers worked by hand, scipy's tests, and what Markdown, LaTeX and CSV make of them."""

import csv
import io
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from result_records import result, right
from scipy import stats

from plr_dspy.experiments.analysis.accuracy import accuracy_table
from plr_dspy.experiments.analysis.calls import calls_table
from plr_dspy.experiments.analysis.outputs import save_tables
from plr_dspy.experiments.analysis.paired import paired_table
from plr_dspy.experiments.analysis.published import load_published, published_table
from plr_dspy.experiments.analysis.significance import grouped_interval, holm, sign_flip_test
from plr_dspy.experiments.analysis.table import Table, escape_latex, escape_markdown
from plr_dspy.experiments.names import CLASSIFICATION, LABEL_METHODS, METHODS, REASONING
from plr_dspy.statistics.comparisons import mean_interval, paired_interval


def runs(method, counts, task="mr", num_demos=8, **fields):
    """One run a seed: how many of 20 examples were right."""
    return [
        result(task, num_demos, seed, method, right(count), **fields)
        for seed, count in enumerate(counts, start=1)
        if count is not None
    ]


def rows(table):
    """The CSV as people's programs read it."""
    return list(csv.DictReader(io.StringIO(table.to_csv())))


def row(table, **key):
    (found,) = [line for line in rows(table) if all(line[name] == str(value) for name, value in key.items())]
    return found


def ranks(table, task="mr"):
    return {line["method"]: line["rank"] for line in rows(table) if line["task"] == task}


def line_of(table, name, block=0):
    """The texts of a line of the Markdown."""
    part = table.to_markdown().split("### ")[block + 1]
    (line,) = [line for line in part.splitlines() if line.startswith(f"| {name} ")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def names(table):
    """The names of the lines of each block, by its heading."""
    blocks = pd.DataFrame(table.cells).groupby("block", sort=False)
    return {heading: list(block.row.unique()) for heading, block in blocks}


class TestAccuracy:
    def test_mean_and_interval_by_hand(self):
        # 50, 60 and 70 %: mean 60, standard error 10 / sqrt(3), t quantile 4.3027 with 2 degrees of freedom.
        table = accuracy_table(runs("Static", [10, 12, 14]))
        cell = row(table, task="mr", method="Static")
        half = 4.302652729911275 * 10 / math.sqrt(3)
        assert float(cell["mean"]) == pytest.approx(60)
        assert float(cell["low"]) == pytest.approx(60 - half)
        assert float(cell["high"]) == pytest.approx(60 + half)
        assert (cell["seeds"], cell["num_demos"]) == ("3", "8")
        assert line_of(table, "Static") == ["60.0 ± 24.8"]

    def test_the_level_is_the_one_asked_for(self):
        table = accuracy_table(runs("Static", [10, 12, 14]), confidence=0.8)
        low, high = mean_interval([50, 60, 70], 0.8)
        cell = row(table, task="mr")
        assert (float(cell["low"]), float(cell["high"])) == (pytest.approx(low), pytest.approx(high))
        assert "80 %" in table.to_markdown()
        with pytest.raises(ValueError, match="confidence"):
            accuracy_table(runs("Static", [10, 12]), confidence=95)

    def test_one_seed_has_no_interval(self):
        table = accuracy_table(runs("Static", [10]))
        cell = row(table, task="mr")
        assert (cell["mean"], cell["low"], cell["high"], cell["seeds"]) == ("50.0", "", "", "1")
        assert line_of(table, "Static") == ["50.0"]

    def test_blocks_by_number_of_demos_and_lines_in_the_grids_order(self):
        records = [r for k in (16, 4) for name in reversed(METHODS) for r in runs(name, [10], num_demos=k)]
        table = accuracy_table(records)
        assert names(table) == {"4 demos": list(METHODS), "16 demos": list(METHODS)}

    def test_only_methods_that_are_present(self):
        table = accuracy_table([*runs("Ours", [10]), *runs("Top-K", [10], num_demos=4)])
        assert names(table) == {"4 demos": ["Top-K"], "8 demos": ["Ours"]}

    def test_best_three_are_marked(self):
        names = ["Static", "Top-K", "PLR-1", "Ours"]
        table = accuracy_table(
            [r for n, count in zip(names, [5, 14, 9, 12], strict=True) for r in runs(n, [count])]
        )
        assert ranks(table) == {"Static": "4", "Top-K": "1", "PLR-1": "3", "Ours": "2"}
        assert [line_of(table, n)[0] for n in names] == ["25.0", "**70.0**", "*45.0*", "<ins>60.0</ins>"]
        latex = table.to_latex()
        assert r"\textbf{70.0}" in latex
        assert r"\underline{60.0}" in latex
        assert r"\textit{45.0}" in latex

    def test_ties_share_a_mark_and_use_up_the_next(self):
        counts = {"Static": [8, 10], "Top-K": [9, 9], "PLR-1": [8, 8], "Ours": [1, 1]}
        table = accuracy_table([r for name, c in counts.items() for r in runs(name, c)])
        assert ranks(table) == {"Static": "1", "Top-K": "1", "PLR-1": "3", "Ours": "4"}

    def test_means_that_only_rounding_tells_apart_are_a_tie(self):
        # 0, 0 and 5 of 30, or 1, 2 and 2: the computer's means of the percentages differ in the last digit.
        counts = {"Static": (0, 0, 5), "Ours": (1, 2, 2)}
        records = [
            result("mr", 8, seed, n, right(c[seed], 30)) for n, c in counts.items() for seed in range(3)
        ]
        assert len({line["mean"] for line in rows(accuracy_table(records))}) == 2
        assert set(ranks(accuracy_table(records)).values()) == {"1"}

    def test_ranks_are_by_the_unrounded_mean(self):
        records = [result(method=n, scores=right(c, 10_000)) for n, c in (("Static", 5001), ("Ours", 5002))]
        table = accuracy_table(records)
        assert ranks(table) == {"Static": "2", "Ours": "1"}
        assert line_of(table, "Static") == ["<ins>50.0</ins>"]

    def test_missing_seeds_are_told_and_get_no_rank(self):
        records = [*runs("Static", [10, 10, 10]), *runs("Top-K", [8, 8, 8]), *runs("Ours", [20, None, 20])]
        table = accuracy_table(records)
        assert ranks(table) == {"Static": "1", "Top-K": "2", "Ours": ""}
        assert line_of(table, "Ours") == ["100.0 ± 0.0†"]
        assert "Ours (mr 2 of 3)" in table.to_markdown()
        assert "3 seeds a column" in table.to_markdown()

    def test_as_many_but_other_seeds_are_not_compared(self):
        table = accuracy_table([*runs("Static", [10, 10, None]), *runs("Ours", [None, 12, 12])])
        assert ranks(table) == {"Static": "", "Ours": ""}
        assert "Static (mr 2 of 3); Ours (mr 2 of 3)" in table.to_markdown()

    def test_nothing_is_the_best_of_one(self):
        table = accuracy_table([*runs("Static", [10, 10]), *runs("Ours", [12])])
        assert ranks(table) == {"Static": "", "Ours": ""}
        assert "bold" not in table.to_markdown()

    def test_columns_with_other_numbers_of_seeds_are_told(self):
        table = accuracy_table([*runs("Static", [10, 10]), *runs("Static", [10, 10, 10], task="subj")])
        assert "seeds by column: mr 2, subj 3, average 2" in table.to_markdown()

    def test_the_average_is_over_tasks_by_seed(self):
        # By seed (50 + 70) / 2 = 60 and (60 + 90) / 2 = 75.
        table = accuracy_table([*runs("Static", [10, 12]), *runs("Static", [14, 18], task="subj")])
        cell = row(table, task="average")
        low, high = mean_interval([60, 75])
        assert float(cell["mean"]) == pytest.approx(67.5)
        assert (float(cell["low"]), float(cell["high"])) == (pytest.approx(low), pytest.approx(high))

    def test_an_average_only_of_all_tasks(self):
        records = [r for t in ("mr", "subj") for n in ("Static", "Top-K") for r in runs(n, [10, 11], task=t)]
        table = accuracy_table([*records, *runs("Ours", [20, 20])])
        assert ranks(table, "average") == {"Static": "1", "Top-K": "1", "Ours": ""}
        assert row(table, task="average", method="Ours")["mean"] == ""
        assert line_of(table, "Ours") == ["**100.0** ± 0.0", "", ""]

    def test_an_average_rests_on_the_seeds_that_all_tasks_have(self):
        records = [*runs("Static", [10, 10, 10]), *runs("Static", [10, 10, 10], task="subj")]
        records += [*runs("Ours", [10, 20, None]), *runs("Ours", [10, 20, 20], task="subj")]
        table = accuracy_table(records)
        cell = row(table, task="average", method="Ours")
        assert (float(cell["mean"]), cell["seeds"], cell["rank"]) == (75, "2", "")
        assert "Ours (mr 2 of 3, average 2 of 3)" in table.to_markdown()

    def test_tasks_without_a_common_seed_have_no_average(self):
        table = accuracy_table([*runs("Static", [10, None]), *runs("Static", [None, 10], task="subj")])
        assert row(table, task="average")["mean"] == ""

    @pytest.mark.parametrize("method", LABEL_METHODS)
    def test_label_methods_do_not_apply_to_reasoning(self, method):
        table = accuracy_table(
            [*runs("Static", [10]), *runs("Static", [10], task="gsm8k"), *runs(method, [12])]
        )
        assert line_of(table, method) == ["**60.0**", "-", "-"]
        assert (
            line_of(
                paired_table([*runs("Static", [10], task="gsm8k"), *runs("Static", [9]), *runs(method, [9])]),
                method,
            )[1]
            == "-"
        )
        assert row(table, task="gsm8k", method=method)["mean"] == ""

    def test_a_label_method_without_runs_on_labels_is_empty(self):
        records = [r for task in ("mr", "subj") for r in runs("Static", [10], task=task)]
        assert line_of(accuracy_table([*records, *runs("DEmO", [12])]), "DEmO") == ["**60.0**", "", ""]

    def test_settings_that_differ_are_told(self):
        table = accuracy_table([*runs("Static", [10]), *runs("Ours", [10], settings={"pool": 10})])
        assert "they differ in: pool" in table.to_markdown()


class TestPaired:
    def test_difference_over_the_pooled_examples(self):
        base = [[1, 1, 0, 0], [1, 0, 0, 0]]
        ours = [[1, 0, 1, 1], [1, 1, 1, 0]]
        records = [
            result("mr", 8, seed, name, [float(x) for x in scores[seed - 1]])
            for name, scores in (("Static", base), ("Ours", ours))
            for seed in (1, 2)
        ]
        cell = row(paired_table(records), task="mr")
        # Differences 0 -1 1 1 and 0 1 1 0: 3 of 8.
        low, high = paired_interval([0, -100, 100, 100, 0, 100, 100, 0])
        assert float(cell["mean"]) == pytest.approx(37.5)
        assert (float(cell["low"]), float(cell["high"])) == (pytest.approx(low), pytest.approx(high))
        assert (cell["against"], cell["seeds"], cell["examples"]) == ("Static", "2", "8")

    def test_over_all_runs_by_hand(self):
        # Each run by itself in its group: +10, +20 and +30 points.
        records = [*runs("Static", [10, 10, 10]), *runs("Ours", [12, 14, 16])]
        cell = row(paired_table(records), task="all")
        low, high = mean_interval([10, 20, 30])
        assert float(cell["mean"]) == pytest.approx(20)
        assert (float(cell["low"]), float(cell["high"])) == (pytest.approx(low), pytest.approx(high))
        assert (cell["runs"], cell["groups"]) == ("3", "3")
        assert float(cell["p"]) == float(cell["p_holm"]) == 0.25  # 2 of 8 sign flips are as far from 0

    def test_runs_that_share_examples_are_not_counted_as_evidence_twice(self):
        once = [*runs("Static", [10, 10, 10, 10]), *runs("Ours", [12, 14, 9, 15])]
        twice = once + [replace(r, num_demos=16) for r in once]
        one, two = (row(paired_table(records), task="all") for records in (once, twice))
        assert (one["runs"], two["runs"]) == ("4", "8")
        for name in ("mean", "low", "high", "p"):
            assert float(one[name]) == pytest.approx(float(two[name]))

    def test_only_common_runs_count(self):
        records = [
            *runs("Static", [10, 10, None]),
            *runs("Ours", [12, None, 20]),
            *runs("PLR-1", [11, 11, 11]),
        ]
        table = paired_table(records)
        ours = row(table, task="mr", method="Ours")
        assert (float(ours["mean"]), ours["seeds"]) == (pytest.approx(10), "1")
        assert "†" in line_of(table, "Ours")[0]
        assert "Not all methods have the same runs" in table.to_markdown()

    def test_the_same_runs_need_no_warning(self):
        table = paired_table([r for n in ("Static", "Top-K", "Ours") for r in runs(n, [10, 11])])
        assert "same runs" not in table.to_markdown()

    def test_a_method_without_a_common_run_is_told(self):
        records = [*runs("Static", [10]), *runs("Top-K", [10]), *runs("Ours", [10], num_demos=4)]
        table = paired_table(records)
        assert "No run in common: Ours" in table.to_markdown()
        assert {line["method"] for line in rows(table) if line["task"] == "all"} == {"Top-K"}

    def test_too_few_groups_for_a_small_p_are_told(self):
        five = [*runs("Static", [10] * 5), *runs("Ours", [19] * 5)]
        six = [*runs("Static", [10] * 6), *runs("Ours", [19] * 6)]
        assert row(paired_table(five), task="all")["p"] == "0.0625"
        assert "no p below 0.0625" in paired_table(five).to_markdown()
        assert "no p below" not in paired_table(six).to_markdown()

    def test_one_run_has_no_interval_over_runs(self):
        cell = row(paired_table([*runs("Static", [10]), *runs("Ours", [19])]), task="all")
        assert (cell["low"], cell["high"], cell["p"]) == ("", "", "1.0")

    def test_another_base(self):
        table = paired_table([*runs("Static", [10]), *runs("Ours", [12])], "Ours")
        assert float(row(table, task="mr", method="Static")["mean"]) == pytest.approx(-10)

    @pytest.mark.parametrize("against", ["PLR-1", "static"])
    def test_a_base_without_results(self, against):
        with pytest.raises(ValueError, match="against must be one of"):
            paired_table([*runs("Static", [10]), *runs("Ours", [10])], against)

    def test_a_base_alone(self):
        with pytest.raises(ValueError, match="two or more methods"):
            paired_table(runs("Static", [10]))


class TestSignificance:
    @given(st.lists(st.integers(-9, 9), min_size=2, max_size=9))
    @settings(max_examples=25, deadline=None)
    def test_sign_flips_against_counting_all(self, differences):
        flips = np.array(np.meshgrid(*[[-1, 1]] * len(differences))).reshape(len(differences), -1)
        sums = np.asarray(differences) @ flips
        share = np.mean(np.abs(sums) >= abs(sum(differences)))
        assert sign_flip_test([[d] for d in differences]) == pytest.approx(share)

    def test_without_ties_of_ranks_it_is_wilcoxon_on_ranks(self):
        ranks = [1, 2, -3, 4, 5, 6, -7, 8]  # its own signed ranks
        assert sign_flip_test([[r] for r in ranks]) == pytest.approx(
            stats.wilcoxon(ranks, method="exact").pvalue
        )

    def test_many_groups_are_drawn_and_near_the_t_test(self):
        values = np.random.default_rng(1).normal(0.4, 1, 40)
        p = sign_flip_test([[v] for v in values])
        assert p == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.01)
        assert p == sign_flip_test([[v] for v in values])

    def test_no_difference(self):
        assert sign_flip_test([[0.0], [0.0], [0.0]]) == 1.0
        assert sign_flip_test([[5.0]]) == 1.0

    def test_an_interval_of_single_values_is_that_of_the_mean(self):
        values = [3.0, 1.0, -2.0, 8.0]
        assert grouped_interval([[v] for v in values], 0.9) == pytest.approx(mean_interval(values, 0.9))

    def test_an_interval_of_groups_of_one_size_is_that_of_their_means(self):
        groups = [[1.0, 3.0], [5.0, 9.0], [0.0, 1.0]]
        assert grouped_interval(groups) == pytest.approx(mean_interval([2.0, 7.0, 0.5]))

    def test_an_interval_of_uneven_groups_by_hand(self):
        # Mean 4 of 1, 3 | 8; residuals by group -4 and +4; variance 2/1 * (16 + 16) / 9.
        low, high = grouped_interval([[1.0, 3.0], [8.0]])
        half = stats.t.ppf(0.975, 1) * math.sqrt(64 / 9)
        assert (low, high) == (pytest.approx(4 - half), pytest.approx(4 + half))

    def test_groups_keep_their_level_where_single_runs_lose_it(self):
        rng = np.random.default_rng(0)
        hits = {"groups": 0, "runs": 0}
        for _ in range(300):
            groups = rng.normal(size=(10, 1)) + 0.3 * rng.normal(size=(10, 4))
            low, high = grouped_interval(groups.tolist())
            hits["groups"] += low <= 0 <= high
            low, high = mean_interval(groups.ravel())
            hits["runs"] += low <= 0 <= high
        assert hits["groups"] / 300 == pytest.approx(0.95, abs=0.04)
        assert hits["runs"] / 300 < 0.8

    def test_holm_by_hand(self):
        # Sorted .01 .02 .03 .5: times 4, 3, 2, 1 is .04 .06 .06 .5.
        assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
        assert holm([0.6, 0.9]) == [1.0, 1.0]
        assert holm([]) == []

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
    def test_holm_lies_between_no_correction_and_bonferroni(self, p_values):
        for p, corrected in zip(p_values, holm(p_values), strict=True):
            assert p <= corrected <= min(1.0, len(p_values) * p)

    def test_methods_are_corrected_together(self):
        records = [*runs("Static", [10] * 6), *runs("Top-K", [9, 11] * 3), *runs("Ours", [15] * 6)]
        table = paired_table(records)
        assert float(row(table, task="all", method="Ours")["p_holm"]) == pytest.approx(2 * 2 / 64)
        assert float(row(table, task="all", method="Top-K")["p_holm"]) == 1.0


class TestCalls:
    def test_means_over_runs(self):
        records = [
            result(
                seed=seed,
                program_calls={"total": calls, "search": 1},
                tokens={"prompt": calls * 10},
                seconds=calls / 8,
            )
            for seed, calls in ((1, 100), (2, 301))
        ]
        table = calls_table(records)
        means = {line["measure"]: (float(line["mean"]), line["runs"]) for line in rows(table)}
        assert means == {
            "program calls": (200.5, "2"),
            "prompt tokens": (2005.0, "2"),
            "seconds": (25.0625, "2"),
        }
        assert line_of(table, "Static") == ["200", "2,005", "25.1", "2"]

    def test_unknown_tokens_are_no_zeros(self):
        records = [result(seed=1), result(seed=2, tokens={}), result(seed=1, method="Ours", tokens={})]
        table = calls_table(records)
        assert float(row(table, method="Static", measure="prompt tokens")["mean"]) == 1000
        assert row(table, method="Ours", measure="prompt tokens")["mean"] == ""
        assert line_of(table, "Static")[1] == "1,000†"
        assert "not all of them know their tokens" in table.to_markdown()

    def test_other_runs_are_told(self):
        alike = [result(method=n, task=t) for n in ("Static", "Ours") for t in ("mr", "subj")]
        assert "same runs" not in calls_table(alike).to_markdown()
        assert "same runs" in calls_table(alike[:-1]).to_markdown()


SPECIAL = "a&b_c%d$e#f{g}h~i^j\\k<l>m|n[o]*p"


def balanced(latex):
    """Whether every brace that is not escaped has its partner."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", latex, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def latex_rows(latex):
    """Numbers of columns that each tabular declares, and of cells in its lines."""
    for columns, body in re.findall(r"\\begin\{tabular\}\{(lr*)\}(.*?)\\end\{tabular\}", latex, re.DOTALL):
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        for line in lines:
            if "\\multicolumn" in line:
                yield len(columns), int(re.search(r"multicolumn\{(\d+)\}", line)[1])
            else:
                yield len(columns), len(re.findall(r"(?<!\\)&", line)) + 1


def grid():
    """A grid with gaps: label methods on classification only, a method without some seeds, one without a task."""
    rng = np.random.default_rng(3)
    for task in (*CLASSIFICATION[:2], *REASONING[:1]):
        for num_demos in (4, 8):
            for seed in (1, 2, 3):
                for method in ("Static", "DEmO", "PLR-4", "Ours"):
                    if (method == "DEmO" and task in REASONING) or (method == "PLR-4" and task == "sst5"):
                        continue
                    if method == "Ours" and (num_demos, seed) == (8, 3):
                        continue
                    yield result(task, num_demos, seed, method, [float(x) for x in rng.random(30) < 0.6])


ALL_TABLES = [
    accuracy_table,
    paired_table,
    calls_table,
    lambda records: published_table(records, load_published()),
]


class TestLayout:
    def test_latex_escapes(self):
        assert escape_latex("50 % & a_b") == r"50 \% \& a\_b"
        assert escape_latex("x^2 ~ {y} # $") == r"x\textasciicircum{}2 \textasciitilde{} \{y\} \# \$"
        assert escape_latex("a\\b") == r"a\textbackslash{}b"
        assert escape_latex("[-1.0, +2.0]") == r"{[}$-$1.0, +2.0{]}"
        assert escape_latex("PLR-4 ± 1") == r"PLR-4 $\pm$ 1"

    def test_markdown_escapes(self):
        assert escape_markdown("a|b*c`d\\e") == r"a\|b\*c\`d\\e"
        assert escape_markdown("<b> _x_ rotten_tomatoes <.0001") == r"\<b> \_x\_ rotten_tomatoes <.0001"

    def test_a_narrow_column_is_still_one(self):
        cells = [{"block": "b", "row": "r", "column": c, "text": t} for c, t in (("c", "1"), ("", ""))]
        rule = Table("t", "t", cells, [], []).to_markdown().splitlines()[5]
        assert rule == "| ------ | --: | --: |"

    @given(st.text(alphabet=st.sampled_from("ab&%$#_{}~^\\<>|[]*-1±†\n"), max_size=12))
    def test_no_name_breaks_the_latex(self, name):
        place = {"block": name, "row": name}
        cell = {**place, "column": name, "text": name, "suffix": " " + name, "rank": 1}
        cells = [cell, {**place, "column": "other", "text": ""}]
        latex = Table("t", name, cells, [], [name]).to_latex()
        assert balanced(latex)
        assert all(declared == found == 3 for declared, found in latex_rows(latex))
        assert latex.count("\n" + r"\midrule") == 1
        # What LaTeX would take for an argument of the line end before it.
        assert not re.search(r"\\\\\s*[\[*]", latex)

    @pytest.mark.parametrize("make", ALL_TABLES)
    def test_every_line_has_a_cell_for_each_column(self, make):
        records = [replace(r, model=SPECIAL, method=r.method.replace("Ours", SPECIAL)) for r in grid()]
        table = make(records)
        latex = table.to_latex()
        assert balanced(latex)
        counts = list(latex_rows(latex))
        assert len(counts) >= 2 * len(names(table))
        assert all(declared == found for declared, found in counts)
        assert latex.count(r"\begin{") == latex.count(r"\end{")
        for part in table.to_markdown().split("### ")[1:]:
            lines = [line for line in part.splitlines() if line.startswith("|")]
            assert len({len(line) for line in lines}) == 1
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1

    @pytest.mark.parametrize("make", ALL_TABLES)
    def test_csv_round_trip_equals_the_numbers(self, make):
        table = make(list(grid()))
        read = rows(table)
        numbers = [cell for cell in table.cells if cell.keys() & set(table.fields)]
        assert len(read) == len(numbers) > 10
        for values, line in zip(numbers, read, strict=True):
            for name in table.fields:
                value = values.get(name)
                back = line[name] if isinstance(value, str) else float(line[name]) if line[name] else None
                assert back == (None if pd.isna(value) else value)

    @pytest.mark.parametrize("make", ALL_TABLES)
    @given(order=st.permutations(range(len(list(grid())))))
    @settings(max_examples=8, deadline=None)
    def test_the_order_of_the_records_does_not_matter(self, make, order):
        records = list(grid())
        one, other = make([records[at] for at in order]), make(records)
        assert (one.to_markdown(), one.to_latex(), one.to_csv()) == (
            other.to_markdown(),
            other.to_latex(),
            other.to_csv(),
        )

    @given(
        st.dictionaries(
            st.sampled_from(METHODS),
            st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=3, max_size=3),
            min_size=1,
        )
    )
    @settings(max_examples=60, deadline=None)
    def test_ranks_are_places_among_the_complete(self, counts):
        records = [r for name, c in counts.items() for r in runs(name, c)]
        if not records:
            return
        seeds = {r.seed for r in records}
        complete = {
            n: sum(c[s - 1] for s in seeds)
            for n, c in counts.items()
            if all(c[s - 1] is not None for s in seeds)
        }
        expected = {n: str(1 + sum(o > t for o in complete.values())) for n, t in complete.items()}
        found = {name: rank for name, rank in ranks(accuracy_table(records)).items() if rank}
        assert found == (expected if len(complete) > 1 else {})


class TestSaving:
    def test_all_tables_in_all_formats(self, tmp_path):
        records = list(grid())
        files = save_tables(records, tmp_path / "new" / "tables", published=load_published())
        assert sorted(path.name for path in files) == [
            f"{name}.{ending}"
            for name in ("accuracy", "calls", "paired", "published")
            for ending in ("csv", "md", "tex")
        ]
        assert sorted(p.name for p in (tmp_path / "new" / "tables").iterdir()) == sorted(
            p.name for p in files
        )
        text = {path.name: path.read_text(encoding="utf-8") for path in files}
        assert text["accuracy.md"] == ALL_TABLES[0](records).to_markdown()
        assert text["paired.tex"] == paired_table(records).to_latex()
        assert text["published.md"] == ALL_TABLES[3](records).to_markdown()
        assert text["calls.csv"] == calls_table(records).to_csv()

    def test_without_a_base_there_is_no_paired_table(self, tmp_path):
        for records in (runs("Ours", [10]), runs("Static", [10])):
            assert not [path for path in save_tables(records, tmp_path) if path.stem == "paired"]

    def test_a_broken_record_leaves_the_old_files(self, tmp_path):
        save_tables(runs("Static", [10]), tmp_path)
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(ValueError, match="two of mr"):
            save_tables([*runs("Static", [12]), *runs("Static", [12])], tmp_path)
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

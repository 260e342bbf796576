"""The paper's tables: what it prints is there cell by cell, and beside our numbers nobody takes it for them."""

import csv
import io
import json
from statistics import fmean

import pytest
from result_records import result, right

from plr_dspy.experiments.analysis.outputs import save_ablations, save_tables
from plr_dspy.experiments.analysis.published import AVERAGE, load_published, published_table
from plr_dspy.experiments.names import ABLATIONS, CLASSIFICATION, METHODS, REASONING, check_method

QWEN, LLAMA = "Qwen2.5-7B-Instruct", "Llama-3.1-8B-Instruct"


def written(*rows, schema=2, num_demos=(8,)):
    row = {"method": "Static", "task": "mr", "accuracy": [61.25]}
    table = {
        "title": "one",
        "model": "big",
        "num_demos": num_demos,
        "rows": [{**row, **more} for more in rows],
    }
    data = {
        "schema": schema,
        "paper": "a paper",
        "source": "a page",
        "seeds": 7,
        "notes": {},
        "tables": [table],
    }
    return json.dumps(data).encode()


class TestTheNumbers:
    @pytest.mark.parametrize(
        ("model", "task", "num_demos", "method", "accuracy"),
        [
            (QWEN, "mr", 4, "Static", 90.22),
            (QWEN, "agnews", 8, "Static", 82.47),
            (QWEN, "subj", 32, "Top-K", 82.32),
            (QWEN, "mr", 8, "GlobalE", 91.11),
            (LLAMA, "agnews", 8, "PDO-FewShotUP", 83.37),
            (LLAMA, "sst5", 32, "DEmO", 54.22),
            (LLAMA, "trec", 16, "PLR-4", 65.97),
            (QWEN, "gsm8k", 4, "Static", 35.45),
            (QWEN, "math500", 16, "PLR-4", 38.78),
            (QWEN, "deepmath", 32, "PLR-4", 46.36),
            (QWEN, "subj", 8, "PLR-64", 79.51),
            (QWEN, "subj", 32, "PLR-1 weighted", 87.48),
            (QWEN, "subj", 32, "PLR-EMA elites=0.3", 86.02),
            (QWEN, "subj", 16, "PLR-4", 85.17),
        ],
    )
    def test_cells_read_off_the_paper(self, model, task, num_demos, method, accuracy):
        assert load_published().cells(model)[task, num_demos, method] == accuracy

    def test_every_cell_of_every_table_is_there(self):
        published = load_published()
        assert published.models == [QWEN, LLAMA]
        assert (published.paper, published.seeds) == ("arXiv:2603.21373", 5)
        theirs = [method for method in METHODS if method != "Ours"]
        places = {(task, k, m) for task in CLASSIFICATION for k in (4, 8, 16, 32) for m in theirs}
        assert published.cells(LLAMA).keys() == places
        searches = ("Static", "Top-K", "PLR-EMA", "PLR-1", "PLR-4")
        places |= {(task, k, m) for task in REASONING for k in (4, 8, 16, 32) for m in searches}
        varied = {(task, m) for task, _, m in published.cells(QWEN).keys() - places}
        assert len(varied) == 15
        assert {task for task, _ in varied} == {"subj"}
        for _, method in varied:
            check_method(method)
        assert {m for values in ABLATIONS.values() for m in values} - {m for _, m in varied} == {
            *("PLR-1", "PLR-2", "PLR-4"),
        }

    def test_the_printed_averages_are_those_of_the_tasks(self):
        """MATH500's columns are headed in another order than the rest: its averages say that the heading holds."""
        for table in load_published().tables:
            rows = {(row.method, row.task): row.accuracy for row in table.rows}
            tasks = dict.fromkeys(row.task for row in table.rows if row.task != AVERAGE)
            for (method, task), printed in rows.items():
                if task == AVERAGE:
                    columns = zip(*(rows[method, name] for name in tasks), strict=True)
                    assert printed == pytest.approx([fmean(column) for column in columns], abs=0.0051)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (written({}, schema=3), r"schema\n.* should be 2"),
            (written({"accuracy": [161.0]}), r"accuracy.0\n.* less than or equal to 100"),
            (written({"accuracy": ["high"]}), "accuracy"),
            (written({"accuracy": [1.0, 2.0]}), "Static on mr must have 1 accuracies; got 2"),
            (b"{}", "tables"),
        ],
    )
    def test_other_data_are_refused(self, data, message):
        with pytest.raises(ValueError, match=message):
            load_published(data)


def ours(method, *counts, task="mr", num_demos=8, **fields):
    return [
        result(task, num_demos, seed, method, right(count), **fields)
        for seed, count in enumerate(counts, start=1)
    ]


def lines(table):
    return list(csv.DictReader(io.StringIO(table.to_csv())))


class TestBesideOurs:
    def test_three_lines_and_a_difference(self):
        table = published_table(ours("Static", 10, 12), load_published(written({})))
        text = table.to_markdown()
        assert "### 8 demos: ours smollm2-135m, 2 seeds; paper big, 7 seeds" in text
        found = [
            [part.strip() for part in line.strip("|").split("|")]
            for line in text.splitlines()
            if "Static" in line
        ]
        assert found == [["Static, ours", "55.0"], ["Static, paper", "61.2"], ["Static, difference", "-6.2"]]
        (line,) = lines(table)
        assert {name: line[name] for name in ("model", "seeds", "published_model", "published_seeds")} == {
            "model": "smollm2-135m",
            "seeds": "2",
            "published_model": "big",
            "published_seeds": "7",
        }
        assert [float(line[name]) for name in ("mean", "published", "difference")] == [55.0, 61.25, -6.25]
        assert r"Static, difference & $-$6.2 \\" in table.to_latex()

    def test_the_local_model_is_named_and_nobody_takes_it_for_theirs(self):
        text = published_table(ours("PLR-4", 10, model="local"), load_published()).to_markdown()
        assert "### 8 demos: ours SmolLM2-135M (local), 1 seed; paper Qwen2.5-7B-Instruct, 5 seeds" in text
        assert "### 8 demos: ours SmolLM2-135M (local), 1 seed; paper Llama-3.1-8B-Instruct, 5 seeds" in text
        assert "says nothing about a method" in text

    def test_only_what_both_have(self):
        records = [
            *ours("Static", 10, 12),
            *ours("Ours", 12),
            *ours("Static", 9, task="trec"),
            *ours("PLR-1", 9, task="trec", num_demos=3),
            *ours("PLR-EMA", 9, task="gsm8k"),
        ]
        table = published_table(records, load_published())
        places = {(line["method"], line["task"], line["published_model"]) for line in lines(table)}
        assert places == {
            ("Static", "mr", QWEN),
            ("Static", "trec", QWEN),
            ("Static", "mr", LLAMA),
            ("Static", "trec", LLAMA),
            ("PLR-EMA", "gsm8k", QWEN),
        }
        assert "ours smollm2-135m, 1 to 2 seeds" in table.to_markdown()
        assert published_table(ours("Ours", 10), load_published()) is None
        assert published_table(ours("Static", 10, num_demos=5), load_published()) is None

    def test_the_order_of_the_math500_columns_is_told(self):
        published = load_published()
        assert "8, 4, 32, 16" in published_table(ours("Static", 10, task="math500"), published).to_markdown()
        assert "8, 4, 32, 16" not in published_table(ours("Static", 10), published).to_markdown()

    def test_the_ablations_have_a_table_of_their_own(self, tmp_path):
        records = [
            *ours("PLR-4", 10, task="subj"),
            *ours("PLR-8", 12, task="subj"),
            *ours("PLR-1 weighted", 12, task="subj"),
            *ours("Static", 9, task="subj"),
        ]
        files = save_ablations(records, tmp_path, published=load_published())
        assert {path.name for path in files} == {
            "ablation.png",
            *(
                f"{name}.{ending}"
                for name in ("ablation", "ablation_published")
                for ending in ("csv", "md", "tex")
            ),
        }
        with (tmp_path / "ablation_published.csv").open() as file:
            found = {
                row["method"]: float(row["published"])
                for row in csv.DictReader(file)
                if row["published_model"] == QWEN
            }
        assert found == {"PLR-4": 80.94, "PLR-8": 80.1, "PLR-1 weighted": 80.88}

    def test_without_numbers_of_the_paper_there_is_no_such_file(self, tmp_path):
        for records, published in ((ours("Static", 10), None), (ours("Ours", 10), load_published())):
            assert not [
                p for p in save_tables(records, tmp_path, published=published) if p.stem == "published"
            ]

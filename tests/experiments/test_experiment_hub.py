"""The tasks' data on the Hugging Face hub, from tables and files of its shapes."""

import builtins

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from plr_dspy.experiments.tasks import hub
from plr_dspy.experiments.tasks.hub import HUB, held_out, labelled_texts
from plr_dspy.experiments.tasks.labelled_text import LabelledText
from plr_dspy.experiments.tasks.loading import DataError, load
from plr_dspy.experiments.tasks.tasks import TASKS

MR = TASKS["mr"]


def numbered(column, class_names, rows):
    """A table whose classes are numbers with names."""
    features = Features({"text": Value("string"), column: ClassLabel(names=class_names)})
    return Dataset.from_list([{"text": text, column: number} for text, number in rows], features=features)


TABLES = {
    ("cornell-movie-review-data/rotten_tomatoes", None): numbered(
        "label", ["neg", "pos"], [("a", 1), ("b", 0)]
    ),
    ("SetFit/sst5", None): Dataset.from_list(
        [
            {"text": str(number), "label": number, "label_text": name}
            for number, name in enumerate(
                ["very negative", "negative", "", "neutral", "positive", "very positive"]
            )
        ]
    ),
    # Here Description is 0 and Abbreviation 2; in CogComp/trec it is the other way round.
    ("SetFit/TREC-QC", None): Dataset.from_list(
        [
            {
                "text": f"{name} ?",
                "label": 9,
                "label_text": "manner of an action",
                "label_original": f"{name}:x",
                "label_coarse": number,
                "label_coarse_text": "in words",
                "label_coarse_original": name,
            }
            for number, name in enumerate(["DESC", "ENTY", "ABBR", "HUM", "NUM", "LOC"])
        ]
    ),
    ("fancyzhx/ag_news", None): numbered(
        "label", ["World", "Sports", "Business", "Sci/Tech"], [("a", 3), ("b", 2), ("c", 0), ("d", 1)]
    ),
    ("SetFit/subj", None): Dataset.from_list(
        [
            {"text": "a", "label": 1, "label_text": "subjective"},
            {"text": "b", "label": 0, "label_text": "objective"},
        ]
    ),
    ("openai/gsm8k", "main"): Dataset.from_list(
        [
            {"question": "a", "answer": "She has 3 + 4 = <<3+4=7>>7.\n#### 7"},
            {"question": "b", "answer": "Much.\n#### 1,234 "},
            {"question": "c", "answer": "no answer"},
        ]
    ),
    ("DigitalLearningGmbH/MATH-lighteval", None): Dataset.from_list(
        [
            {
                "problem": "a",
                "level": "Level 1",
                "type": "Algebra",
                "solution": r"So $\boxed{\frac{1}{\sqrt{2}}}$.",
            },
            {"problem": "b", "level": "Level 5", "type": "Algebra", "solution": "It is 3."},
            {"problem": "also in the test", "level": "Level 5", "type": "Algebra", "solution": r"\boxed{3}"},
        ]
    ),
    ("HuggingFaceH4/MATH-500", None): Dataset.from_list(
        [
            {"problem": "also in the test ", "solution": r"\boxed{3}", "answer": "3", "subject": "Algebra"},
            {"problem": "t", "solution": r"\boxed{1,2}", "answer": "1,2", "subject": "Algebra"},
        ]
    ),
}
EXPECTED = {
    "mr": ["positive", "negative"],
    "sst5": ["terrible", "bad", "okay", "good", "great"],
    "trec": ["Description", "Entity", "Abbreviation", "Human", "Number", "Location"],
    "agnews": ["Tech", "Business", "World", "Sports"],
    "subj": ["subjective", "objective"],
    "gsm8k": ["7", "1,234"],
    "math500": [r"\frac{1}{\sqrt{2}}"],
}
IN_TEST = {"math500": ["3", "1,2"]}


@pytest.fixture
def the_hub(monkeypatch):
    """A hub that has the tables, with other texts in their test splits."""
    asked = []

    def load_dataset(path, config=None, *, split, **more):
        asked.append((path, split))
        table = TABLES[path, config]
        if split == "test" and path != "HuggingFaceH4/MATH-500":
            text = next(name for name in ("text", "question") if name in table.column_names)
            return table.map(lambda row: {text: f"test {row[text]}"})
        return table

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


class TestHub:
    @pytest.mark.parametrize("name", EXPECTED)
    def test_columns(self, name, the_hub):
        task = TASKS[name]
        train, test = load(task)
        assert [example[task.output_field] for example in train] == EXPECTED[name]
        assert [example[task.output_field] for example in test] == IN_TEST.get(name, EXPECTED[name])
        assert [split for _, split in the_hub] == ["train", "test"]
        assert set(EXPECTED[name]) <= set(task.labels or EXPECTED[name])

    def test_every_label_has_a_class(self):
        for task in TASKS.values():
            classes = HUB[task.name].train.classes
            assert sorted((classes or {}).values()) == sorted(task.labels)

    @pytest.mark.parametrize("order", [["ABBR", "DESC"], ["DESC", "ABBR"]])
    def test_numbered_classes_go_by_name(self, order):
        """So that Description and Abbreviation cannot change places, as they do between copies of TREC."""
        texts = {"What does NASA stand for ?": "ABBR", "What is an atom ?": "DESC"}
        table = numbered(
            "label_coarse_original", order, [(t, order.index(name)) for t, name in texts.items()]
        )
        rows = labelled_texts(table, HUB["trec"].train)
        assert [row.answer for row in rows] == ["Abbreviation", "Description"]

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            (
                numbered("label", ["neg", "pos"], [("a", 0), ("b", -1)]),
                r"row 1 of .*tomatoes \(train\): .*got -1",
            ),
            (
                numbered("label", ["bad", "pos"], [("a", 0)]),
                "row 0 of .*: unknown class 'bad', expected one of",
            ),
            (Dataset.from_list([{"text": "a", "label": 0}]), "row 0 of .*: 'label' must be a string; got 0"),
            (
                Dataset.from_list([{"text": None, "label": "neg"}]),
                "row 0 of .*: 'text' must be a string; got None",
            ),
            (
                Dataset.from_list([{"sentence": "a", "label": "neg"}]),
                r"no column \['text'\], only \['sentence', .*",
            ),
            (Dataset.from_list([]), r"no column \['label', 'text'\], only \[\]"),
        ],
    )
    def test_a_data_set_that_has_been_changed(self, table, words, monkeypatch):
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: table)
        with pytest.raises(DataError, match=words) as caught:
            load(MR)
        assert "cannot be read" not in str(caught.value)

    def test_offline(self, monkeypatch):
        def refuse(*_, **__):
            raise ConnectionError("no route\nto the host")

        monkeypatch.setattr(datasets, "load_dataset", refuse)
        words = r"rotten_tomatoes \(train\) cannot be read .* \(no route\): .*mr_train.jsonl.*--data-dir"
        with pytest.raises(DataError, match=words):
            load(MR)

    def test_without_the_library(self, monkeypatch):
        real = builtins.__import__

        def without(name, *args, **kwargs):
            if name == "datasets":
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ImportError, match=r"pip install 'plr-dspy\[experiments\]'"):
            load(MR)


CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
dataset_info:
  features:
  - {name: question, dtype: string}
  - {name: final_answer, dtype: string}
  - {name: difficulty, dtype: float64}
  - {name: r1_solution_1, dtype: string}
  splits:
  - {name: train, num_bytes: 4963981308, num_examples: 103110}
  download_size: 2135828159
  dataset_size: 4963981308
---
"""


def test_deepmath_is_streamed_and_split(tmp_path, monkeypatch):
    """From a folder laid out as the data set is on the hub, read by the real library."""
    (tmp_path / "data").mkdir()
    (tmp_path / "README.md").write_text(CARD)
    for shard in range(2):
        Dataset.from_list(
            [
                {"question": f"q{i}", "final_answer": f"${i}$", "difficulty": 5.0, "r1_solution_1": "long"}
                for i in range(shard * 20, shard * 20 + 20)
            ]
        ).to_parquet(tmp_path / "data" / f"train-0000{shard}-of-00002.parquet")
    real, tables = datasets.load_dataset, []

    def load_dataset(path, *args, **kwargs):
        assert path == "zwhe99/DeepMath-103K"
        tables.append(real(str(tmp_path), *args, **kwargs))
        return tables[-1]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(hub, "NUM_HELD_OUT", 10)
    train, test = load(TASKS["deepmath"])
    assert (len(train), len(test)) == (30, 10)
    assert {e.question: e.answer for e in [*train, *test]} == {f"q{i}": f"${i}$" for i in range(40)}
    assert tables[0].column_names == ["question", "final_answer"]  # the solutions are not fetched


def test_what_is_held_out_does_not_depend_on_the_order(monkeypatch):
    monkeypatch.setattr(hub, "NUM_HELD_OUT", 8)
    rows = [LabelledText(f"q{i}", "1", f"row {i}") for i in range(30)]
    train, test = held_out(rows)
    assert (len(train), len(test)) == (22, 8)
    assert {row.text for row in [*train, *test]} == {row.text for row in rows}
    assert {row.text for row in test} != {row.text for row in rows[:8]}
    others = [
        LabelledText("", "1", "row 30"),
        LabelledText("q", "", "row 31"),
        *(row._replace(answer="2") for row in rows),
    ]
    again = held_out([*reversed(rows), *others])
    assert [sorted(part) for part in again] == [sorted(part) for part in (train, test)]

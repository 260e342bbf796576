"""The tasks' data, in files and on the hub: what is read, what is left out, and what is refused."""

import builtins
import json
import logging

import datasets
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from paper import data
from paper.data import HUB, DataError, hold_out, hub_rows, load
from paper.tasks import TASKS

MR = TASKS["mr"]


def write(folder, task, train, test):
    """Files of a task, from pairs of text and answer."""
    columns = ("question", "answer") if task.reasoning else ("text", "label")
    for part, pairs in (("train", train), ("test", test)):
        lines = [json.dumps(dict(zip(columns, pair, strict=True))) for pair in pairs]
        (folder / f"{task.name}_{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(folder, task=MR):
    """Both parts of a task as pairs of text and answer."""
    parts = load(task, data_dir=folder)
    return [[(e[task.input_field], e[task.output_field]) for e in part] for part in parts]


def some(task, start, count=6):
    answers = task.labels or ("1,234", r"\frac{1}{2}", "Yes")
    return [(f"text {i} of {task.name}", answers[i % len(answers)]) for i in range(start, start + count)]


class TestFiles:
    @pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
    def test_every_task(self, task, tmp_path):
        train, test = some(task, 0), some(task, 10, 4)
        write(tmp_path, task, train, test)
        assert read(tmp_path, task) == [train, test]
        for part in load(task, data_dir=str(tmp_path)):
            assert all(set(example.inputs().keys()) == {task.input_field} for example in part)

    def test_what_is_left_out(self, tmp_path, caplog):
        train = [
            *(("  fine ", "positive"), ("fine", "negative"), ("very  fine", "positive")),
            *(("very fine", "positive"), ("in both", "negative"), (" \t", "positive")),
            *(("dull", " negative\n"), ("no label", " "), ("", "neither")),
        ]
        test = [("in  both", "negative"), ("twice", "positive"), ("twice", "positive"), ("", "positive")]
        write(tmp_path, MR, train, test)
        with caplog.at_level(logging.INFO, logger="paper"):
            assert read(tmp_path) == [
                [("fine", "positive"), ("very  fine", "positive"), ("dull", "negative")],
                [("in  both", "negative"), ("twice", "positive"), ("twice", "positive")],
            ]
        assert "mr: 3 train texts are left out" in caplog.text
        assert "mr: 3 rows without text or answer are left out" in caplog.text
        assert "mr: 1 rows without text or answer are left out" in caplog.text

    def test_what_a_file_may_hold_besides(self, tmp_path):
        """A byte order mark, blank lines, Windows line ends, more fields, and line separators in a text."""
        write(tmp_path, MR, [], some(MR, 0))
        lines = [
            '\ufeff{"text": "a\u2028b", "label": "positive", "id": 3}\r',
            "",
            '{"label":"negative","text":"c"}',
        ]
        (tmp_path / "mr_train.jsonl").write_bytes("\n".join(lines).encode())
        assert read(tmp_path)[0] == [("a\u2028b", "positive"), ("c", "negative")]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ('{"text": "a", "label": "meh"}', r": 'meh' is no label of 'mr'; expected .*'positive'\]"),
            ('{"text": "a", "label": "Positive"}', ": 'Positive' is no label"),
            (
                '{"sentence": "a", "label": "positive"}',
                r" must be an object .*; it has \['label', 'sentence'\]",
            ),
            ('["a", "positive"]', " must be an object with"),
            ('{"text": "a", "label": 1}', ": text and answer must be strings; got 1"),
            ('{"text": null, "label": "positive"}', ": text and answer must be strings; got None"),
            ('{"text": "a", ', " is no JSON"),
            (b'{"text": "caf\xe9", "label": "positive"}', " is no JSON"),
        ],
    )
    def test_bad_lines_are_named(self, tmp_path, line, words):
        write(tmp_path, MR, some(MR, 0), some(MR, 10))
        path = tmp_path / "mr_train.jsonl"
        path.write_bytes(path.read_bytes() + b"\n" + (line if isinstance(line, bytes) else line.encode()))
        with pytest.raises(DataError, match=rf"^line 8 of .*mr_train.jsonl{words}"):
            load(MR, data_dir=tmp_path)

    def test_missing_and_empty_files(self, tmp_path):
        with pytest.raises(DataError, match=r"no file .*mr_train.jsonl: data_dir .*mr_test.jsonl.*\"text\""):
            load(MR, data_dir=tmp_path)
        for train, test, part in ((some(MR, 0), [], "test"), (some(MR, 0), some(MR, 0), "train")):
            write(tmp_path, MR, train, test)
            with pytest.raises(DataError, match=f"the {part} part of 'mr' holds no usable row"):
                load(MR, data_dir=tmp_path)


def numbered(column, class_names, rows):
    """A table whose classes are numbers with names."""
    features = Features({"text": Value("string"), column: ClassLabel(names=class_names)})
    return Dataset.from_list([{"text": text, column: number} for text, number in rows], features=features)


def table(*rows, columns):
    return Dataset.from_list([dict(zip(columns.split(), row, strict=True)) for row in rows])


GRADES = ["very negative", "negative", "", "neutral", "positive", "very positive"]
TABLES = {
    "cornell-movie-review-data/rotten_tomatoes": numbered("label", ["neg", "pos"], [("a", 1), ("b", 0)]),
    "SetFit/sst5": table(
        *((str(i), i, name) for i, name in enumerate(GRADES)), columns="text label label_text"
    ),
    # Here Description is 0 and Abbreviation 2; in CogComp/trec it is the other way round.
    "SetFit/TREC-QC": table(
        *((f"{n} ?", i, n) for i, n in enumerate(["DESC", "ENTY", "ABBR", "HUM", "NUM", "LOC"])),
        columns="text label_coarse label_coarse_original",
    ),
    "fancyzhx/ag_news": numbered(
        "label", ["World", "Sports", "Business", "Sci/Tech"], [("a", 3), ("b", 2), ("c", 0), ("d", 1)]
    ),
    "SetFit/subj": table(("a", 1, "subjective"), ("b", 0, "objective"), columns="text label label_text"),
    "openai/gsm8k": table(
        ("a", "She has 3 + 4 = <<3+4=7>>7.\n#### 7"),
        ("b", "Much.\n#### 1,234 "),
        ("c", "no answer"),
        columns="question answer",
    ),
    "DigitalLearningGmbH/MATH-lighteval": table(
        ("a", "Level 1", r"So $\boxed{\frac{1}{\sqrt{2}}}$."),
        ("b", "Level 5", "It is 3."),
        ("also in the test", "Level 5", r"\boxed{3}"),
        columns="problem level solution",
    ),
    "HuggingFaceH4/MATH-500": table(
        ("also in the test ", r"\boxed{3}", "3"),
        ("t", r"\boxed{1,2}", "1,2"),
        columns="problem solution answer",
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


class TestHub:
    @pytest.mark.parametrize("name", EXPECTED)
    def test_columns(self, name, monkeypatch):
        """From a hub that has the tables, with other texts in their test splits."""
        asked = []

        def load_dataset(path, config=None, *, split, **more):
            asked.append((config, split))
            if split == "train" or path == "HuggingFaceH4/MATH-500":
                return TABLES[path]
            text = next(name for name in ("text", "question") if name in TABLES[path].column_names)
            return TABLES[path].map(lambda row: {text: f"test {row[text]}"})

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        task = TASKS[name]
        train, test = load(task)
        assert [example[task.output_field] for example in train] == EXPECTED[name]
        in_test = ["3", "1,2"] if name == "math500" else EXPECTED[name]
        assert [example[task.output_field] for example in test] == in_test
        assert asked == [("main" if name == "gsm8k" else None, split) for split in ("train", "test")]

    @pytest.mark.parametrize("order", [["ABBR", "DESC"], ["DESC", "ABBR"]])
    def test_numbered_classes_go_by_name(self, order):
        """So that Description and Abbreviation cannot change places, as they do between copies of TREC."""
        texts = {"What does NASA stand for ?": "ABBR", "What is an atom ?": "DESC"}
        rows = [(text, order.index(name)) for text, name in texts.items()]
        found = hub_rows(numbered("label_coarse_original", order, rows), HUB["trec"][0])
        assert [answer for _, answer, _ in found] == ["Abbreviation", "Description"]

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            (numbered("label", ["neg", "pos"], [("a", 0), ("b", -1)]), r"row 1 of .*s \(train\): .*got -1"),
            (
                numbered("label", ["bad", "pos"], [("a", 0)]),
                "row 0 of .*: unknown class 'bad', expected one of",
            ),
            (Dataset.from_list([{"text": None, "label": "neg"}]), "row 0 of .*must be strings; got None"),
            (
                Dataset.from_list([{"sentence": "a", "label": "neg"}]),
                r"no column \['text'\], only \['sentence', ",
            ),
        ],
    )
    def test_a_data_set_that_has_been_changed(self, changed, words, monkeypatch):
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: changed)
        with pytest.raises(DataError, match=words):
            load(MR)

    def test_offline_and_without_the_library(self, monkeypatch):
        def refuse(*_, **__):
            raise ConnectionError("no route\nto the host")

        monkeypatch.setattr(datasets, "load_dataset", refuse)
        words = r"rotten_tomatoes \(train\) cannot be read .* \(no route\): .*mr_train.jsonl.*--data-dir"
        with pytest.raises(DataError, match=words):
            load(MR)
        real = builtins.__import__

        def without(name, *args, **kwargs):
            if name == "datasets":
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(ImportError, match=r"pip install 'plr-dspy\[examples\]'"):
            load(MR)


def test_deepmath_is_streamed_and_split(monkeypatch):
    """Its solutions, which are gigabytes, are not fetched."""
    columns, asked = "question final_answer", []

    def load_dataset(path, config=None, **more):
        asked.append((path, more))
        return table(*((f"q{i}", f"${i}$") for i in range(40)), columns=columns).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(data, "NUM_HELD_OUT", 10)
    train, test = load(TASKS["deepmath"])
    assert (len(train), len(test)) == (30, 10)
    assert {e.question: e.answer for e in [*train, *test]} == {f"q{i}": f"${i}$" for i in range(40)}
    ((path, more),) = asked
    assert (path, more["streaming"], more["columns"]) == ("zwhe99/DeepMath-103K", True, columns.split())
    assert list(more["features"]) == columns.split()


def test_what_is_held_out_does_not_depend_on_the_order(monkeypatch):
    monkeypatch.setattr(data, "NUM_HELD_OUT", 8)
    rows = pd.DataFrame({"text": [f"q{i}" for i in range(30)], "answer": "1"})
    train, test = hold_out(rows)
    assert (len(train), len(test)) == (22, 8)
    assert {*train.text, *test.text} == set(rows.text)
    assert set(test.text) != set(rows.text[:8])
    again = hold_out(pd.concat([rows[::-1], rows.assign(answer="2")]))
    assert [set(part.text) for part in again] == [set(part.text) for part in (train, test)]
    assert {*again[0].answer, *again[1].answer} == {"1"}

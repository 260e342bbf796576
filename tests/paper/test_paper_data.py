"""The data of the tasks, in files and on the hub: usable rows, skipped rows, and errors."""

import json
import logging

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from paper.data import HUB, DataError, Row, after_hashes, hold_out, last_box, load
from paper.tasks import TASKS

MR = TASKS["mr"]


def write(folder, task, train, test):
    columns = ("question", "answer") if task.reasoning else ("text", "label")
    for part, pairs in (("train", train), ("test", test)):
        lines = [json.dumps(dict(zip(columns, pair, strict=True))) for pair in pairs]
        (folder / f"{task.name}_{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(folder, task=MR):
    def pair(example):
        return example[task.input_field], example[task.output_field]

    return [list(map(pair, part)) for part in load(task, data_dir=folder)]


def some(task, start, count=6):
    answers = task.labels or ("1,234", r"\frac{1}{2}", "Yes")
    return [(f"text {i} of {task.name}", answers[i % len(answers)]) for i in range(start, start + count)]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_files_of_every_task_are_read(task, tmp_path):
    train = some(task, 0)
    test = some(task, 10, 4)
    write(tmp_path, task, train, test)
    assert read(tmp_path, task) == [train, test]
    for part in load(task, data_dir=tmp_path):
        assert all(set(example.inputs().keys()) == {task.input_field} for example in part)


def test_duplicates_and_incomplete_rows_are_skipped(tmp_path, caplog):
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
    assert "mr: skipped train texts that are repeated or in the test part (3)" in caplog.text
    assert "mr: skipped rows whose text or answer is empty (3)" in caplog.text
    assert "mr: skipped rows whose text or answer is empty (1)" in caplog.text


def test_byte_order_marks_blank_lines_and_other_fields_are_ignored(tmp_path):
    write(tmp_path, MR, [], some(MR, 0))
    first = '{"text": "a\u2028b", "label": "positive", "id": 3}'
    second = '{"label":"negative","text":"c"}'
    lines = [f"\ufeff{first}\r", "", second]
    (tmp_path / "mr_train.jsonl").write_bytes("\n".join(lines).encode())
    assert read(tmp_path)[0] == [("a\u2028b", "positive"), ("c", "negative")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a", "label": "meh"}', r" must have one of .*'positive'\]; got 'meh'"),
        (
            '{"sentence": "a", "label": "positive"}',
            r" is invalid: (?s:.*)text\n  Field required.*'sentence'",
        ),
        ('{"text": "a", "label": 1}', r" is invalid: (?s:.*)label\n  Input should be a valid string.*=1"),
    ],
)
def test_errors_name_invalid_lines(tmp_path, line, words):
    write(tmp_path, MR, some(MR, 0), some(MR, 10))
    path = tmp_path / "mr_train.jsonl"
    path.write_text(f"{path.read_text()}\n{line}")
    with pytest.raises(DataError, match=rf"^row 7 of .*mr_train.jsonl{words}"):
        load(MR, data_dir=tmp_path)


@pytest.mark.parametrize(
    "content", [b'{"text": "a", ', b'{"text": "caf\xe9", "label": "positive"}', b"[1]"]
)
def test_errors_name_unreadable_files(tmp_path, content):
    write(tmp_path, MR, some(MR, 0), some(MR, 10))
    (tmp_path / "mr_train.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"mr_train.jsonl (cannot be read|must be a JSON object)"):
        load(MR, data_dir=tmp_path)


def test_missing_and_empty_files_are_errors(tmp_path):
    with pytest.raises(
        DataError, match=r"no file .*mr_train.jsonl. Pass a data_dir .*mr_test.jsonl.*\"text\""
    ):
        load(MR, data_dir=tmp_path)
    for train, test, part in (([("", "")], some(MR, 0), "train"), (some(MR, 0), some(MR, 0), "train")):
        write(tmp_path, MR, train, test)
        with pytest.raises(DataError, match=f"the {part} part of 'mr' must have rows"):
            load(MR, data_dir=tmp_path)


SOLUTION = {"gsm8k": "So 4 * 5 = 20.\n#### {}", "math500": r"First \\boxed{{no}}, then \\boxed{{{}}}."}
"""Templates for solutions in the hub's train splits. Each solution ends with the answer."""
FIVE_STARS = ["very negative", "negative", "neutral", "positive", "very positive"]
CLASSES = {
    "mr": ["neg", "pos"],
    "sst5": FIVE_STARS,
    "trec": ["DESC", "ENTY", "ABBR", "HUM", "LOC", "NUM"],
    "agnews": ["World", "Sports", "Business", "Sci/Tech"],
    "subj": ["subjective", "objective"],
}
NUMBERED = ("mr", "agnews")
"""Tasks with a `ClassLabel` column of labels on the hub. In other tasks, the label names are text."""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Return a function that writes a split to a local folder. The folder replaces the data set on the hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)

    def write_split(source, columns, features=None):
        folder = tmp_path / source.split.path
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{source.split.split}.parquet"
        if source.split.config is not None:
            (folder / source.split.config).mkdir(exist_ok=True)
            name = f"{source.split.config}/{name}"
            files = f"  data_files:\n  - split: train\n    path: {source.split.config}/train.parquet\n"
            files += f"  - split: test\n    path: {source.split.config}/test.parquet\n"
            (folder / "README.md").write_text(
                f"---\nconfigs:\n- config_name: {source.split.config}\n{files}---\n"
            )
        Dataset.from_dict(columns, features=features).to_parquet(folder / name)

    return write_split


def on_the_hub(task, source, pairs):
    """Return pairs of text and answer as columns in the hub's format, with the features of the columns."""
    texts = [text for text, _ in pairs]
    answers = [answer for _, answer in pairs]
    features = None
    if task.labels:
        answers = [CLASSES[task.name][task.labels.index(answer)] for answer in answers]
    elif (source.split.split == "train" and task.name in SOLUTION) or task.name == "gsm8k":
        answers = [SOLUTION[task.name].format(answer) for answer in answers]
    if task.name in NUMBERED:
        names = CLASSES[task.name]
        answers = [names.index(answer) for answer in answers]
        features = Features({source.text: Value("string"), source.answer: ClassLabel(names=names)})
        features["id"] = Value("int64")
    return {source.text: texts, source.answer: answers, "id": list(range(len(pairs)))}, features


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_task_is_read_from_the_hub(task, hub):
    parts = [some(task, 0, 12), some(task, 20, 4)]
    sources = HUB[task.name]
    for source, pairs in zip(sources, parts, strict=False):
        hub(source, *on_the_hub(task, source, pairs))
    train, test = load(task)
    pairs = [[(e[task.input_field], e[task.output_field]) for e in part] for part in (train, test)]
    if len(sources) == 2:
        assert pairs == parts
    else:
        assert len(pairs[1]) == 2
        assert sorted(pairs[0] + pairs[1]) == sorted(parts[0])
    assert all(set(example.inputs().keys()) == {task.input_field} for example in (*train, *test))


def test_rows_on_the_hub_without_a_label_or_text_are_skipped(hub, caplog):
    train, test = HUB["mr"]
    hub(test, *on_the_hub(MR, test, some(MR, 10)))
    columns, features = on_the_hub(MR, train, some(MR, 0))
    columns[train.answer][1] = -1
    columns[train.text][2] = " "
    hub(train, columns, features)
    with caplog.at_level(logging.INFO, logger="paper"):
        assert len(load(MR)[0]) == 4
    assert "mr: skipped rows whose text or answer is empty (2)" in caplog.text


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"text": ["a"], "label": ["fine"]},
            r"^hub:.*:train\[0\] must have one of the classes .*'pos'\]; got 'fine'",
        ),
        (
            {"text": ["a"], "label": [1]},
            r"^hub:.*:train\[0\] must have a string in 'label'; got 1. .*--data-dir",
        ),
        (
            {"sentence": ["a"], "label": [1]},
            r"must have the columns \['text', 'label'\]; .*'sentence'.*--data-dir",
        ),
    ],
)
def test_errors_name_a_changed_data_set(hub, columns, words):
    hub(HUB["mr"][0], columns)
    with pytest.raises(DataError, match=words):
        load(MR)


def test_the_error_without_the_hub_advises_passing_files(hub):
    with pytest.raises(
        DataError, match=r"hub:SetFit/subj:train cannot be read .*subj_test.jsonl .*\(--data-dir\)"
    ):
        load(TASKS["subj"])


def test_answers_are_extracted_from_solutions():
    assert after_hashes("1 #### 2\n#### 1,234 ") == "1,234"
    assert after_hashes("no answer") == ""
    assert last_box(r"\boxed{1}, or \fbox{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert last_box("no box") == ""


def test_held_out_rows_do_not_depend_on_the_order():
    rows = [Row(text=f"text {number}", answer="1") for number in range(20)]
    train, test = hold_out([*rows, Row(text="text  3", answer="2")])
    assert (len(train), len(test)) == (16, 4)
    other_train, other_test = hold_out(rows[::-1])
    assert [row.text for row in other_test] == [row.text for row in test]
    assert len(other_train) == 16

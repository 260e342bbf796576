"""The tasks' files: what is read, what is left out, and what is refused."""

import json
import logging

import pytest

from paper.data import DataError, load
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
def test_every_task(task, tmp_path):
    train = some(task, 0)
    test = some(task, 10, 4)
    write(tmp_path, task, train, test)
    assert read(tmp_path, task) == [train, test]
    for part in load(task, data_dir=tmp_path):
        assert all(set(example.inputs().keys()) == {task.input_field} for example in part)


def test_what_is_left_out(tmp_path, caplog):
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
    assert "mr: skipped 3 train texts" in caplog.text
    assert "mr: skipped 3 rows without a text or an answer" in caplog.text
    assert "mr: skipped 1 rows without a text or an answer" in caplog.text


def test_what_a_file_may_hold_besides(tmp_path):
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
        ('{"sentence": "a", "label": "positive"}', r" is invalid: (?s:.*)text\n  Field required.*'sentence'"),
        ('{"text": "a", "label": 1}', r" is invalid: (?s:.*)label\n  Input should be a valid string.*=1"),
        ('{"text": "a", ', " is invalid: (?s:.*)Invalid JSON"),
        (b'{"text": "caf\xe9", "label": "positive"}', " is invalid: (?s:.*)Invalid JSON"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, words):
    write(tmp_path, MR, some(MR, 0), some(MR, 10))
    path = tmp_path / "mr_train.jsonl"
    path.write_bytes(path.read_bytes() + b"\n" + (line if isinstance(line, bytes) else line.encode()))
    with pytest.raises(DataError, match=rf"^line 8 of .*mr_train.jsonl{words}"):
        load(MR, data_dir=tmp_path)


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(DataError, match=r"no file .*mr_train.jsonl. data_dir .*mr_test.jsonl.*\"text\""):
        load(MR, data_dir=tmp_path)
    for train, test, part in ((some(MR, 0), [], "test"), (some(MR, 0), some(MR, 0), "train")):
        write(tmp_path, MR, train, test)
        with pytest.raises(DataError, match=f"the {part} part of 'mr' has no usable row"):
            load(MR, data_dir=tmp_path)

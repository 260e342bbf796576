"""Loading of files and of data sets on the hub: cell values, errors and leftover files."""

import json
import sys
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value, are_progress_bars_disabled, config

from plr_dspy.data.loading import HubSplit, hub_split, load_file, load_hub_split
from plr_dspy.errors import MissingPackageError

CELLS = [
    "NA",
    "null",
    "",
    "01",
    "1.0",
    "None",
    "2020-01-01",
    "nan",
    "TRUE",
    "1e3",
    str(2**70),
    'a "b", c\nd',
    " é\u2028",
]


def save(path, cells):
    """Write one row for each cell, with the cell as its label, and return the rows."""
    rows = [{"text": f"row {number}", "label": cell} for number, cell in enumerate(cells)]
    if path.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(path)
    elif path.suffix == ".csv":
        lines = ["text, label"]
        for row in rows:
            quoted = row["label"].replace('"', '""')
            lines.append(f'{row["text"]},"{quoted}"')
        path.write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8", newline="")
    else:
        path.write_text("\ufeff" + "\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    return rows


@pytest.mark.parametrize("kind", ["csv", "CSV", "jsonl", "json", "parquet"])
@pytest.mark.parametrize("cells", [CELLS, *([cell, cell] for cell in CELLS)], ids=repr)
def test_text_stays_unchanged(tmp_path, kind, cells):
    """Cells stay text even if all cells of a column look like numbers or dates."""
    path = tmp_path / f"file.{kind}"
    rows = save(path, cells) if kind != "CSV" else save(tmp_path / "file.csv", cells)
    if kind == "CSV":
        (tmp_path / "file.csv").rename(path)
    assert list(load_file(path)) == rows


@pytest.mark.parametrize(
    "content", ["text,label\na,b\nc,\n", "\n \ntext,label\n\na,b\nc,\n\n", "text,label\na,b,\nc,,\n"]
)
def test_blank_lines_and_a_comma_after_all_rows_are_ignored(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    assert load_file(path) == [{"text": "a", "label": "b"}, {"text": "c", "label": ""}]


def test_json_values_keep_their_types(tmp_path):
    rows = [{"a": 1, "b": [1, "x", None]}, {"a": "1", "b": {"k": 2**70}}, {"a": None}, {"b": 1.5}]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert load_file(path) == rows


def test_parquet_keeps_classes(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    Dataset.from_dict({"text": ["a"], "label": [1]}, features=features).to_parquet(
        tmp_path / "rows.parquet"
    )
    assert load_file(tmp_path / "rows.parquet").features == features


def test_folders_of_parquet_files_do_not_become_columns(tmp_path):
    folder = tmp_path / "language=en"
    folder.mkdir()
    Dataset.from_list([{"text": "a"}]).to_parquet(folder / "rows.parquet")
    assert list(load_file(folder / "rows.parquet")) == [{"text": "a"}]


def test_files_leave_nothing_in_the_cache(tmp_path, monkeypatch, capfd):
    cache = Path(config.HF_DATASETS_CACHE)
    before = sorted(cache.rglob("*"))
    bars = are_progress_bars_disabled()
    (tmp_path / "a.csv").write_text("text\na\n")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}')
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    assert list(load_file(tmp_path / "a.csv")) == load_file(tmp_path / "a.jsonl") == [{"text": "a"}]
    assert sorted(cache.rglob("*")) == before
    assert not list(temporary.iterdir())
    assert are_progress_bars_disabled() == bars
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "a.csv",
            b"text,label\na,\nb, c,x\n",
            r"line 3 of .*a.csv must have 2 cells, one for each column; got 3",
        ),
        (
            "a.csv",
            b"text,label\n\na,b,c\n",
            r"line 3 of .*a.csv must have 2 cells, one for each column; got 3: quote cells that contain commas$",
        ),
        (
            "a.csv",
            b"text,label\na, b,\nc,d\n",
            r"line 2 of .*a.csv must have 2 cells, one for each column; got 3",
        ),
        ("a.csv", b"\n \n", r"a.csv must have at least one row; got only blank lines"),
        (
            "a.csv",
            b"text,label\na,b\nc\n",
            r"line 3 of .*a.csv must have 2 cells, one for each column; got 1: add the missing cells$",
        ),
        ("a.csv", b'text,label\n"a"b,c\n', r"a.csv cannot be read \(line 2: ',' expected after"),
        ("a.csv", b'text,label\n"a,b\n', r"a.csv cannot be read \(line 2: unexpected end of data\)"),
        ("a.csv", b"text,text\na,b\n", r"a.csv must have different names; got \['text'\] more than once"),
        (
            "a.csv",
            b"text,label,,\na,b,,\n",
            r"a.csv must .*; got 2 columns without a name: name these columns, or",
        ),
        (
            "a.csv",
            b"text;label\na;b\n",
            r"a.csv must be separated by commas; got the single column 'text;label'",
        ),
        ("a.csv", b"text\tlabel\na\tb\n", r"a.csv must be separated by commas"),
        ("a.csv", "caf\xe9,b\n1,2\n".encode("latin-1"), r"a.csv cannot be read \('utf-8' codec"),
        ("a.csv", b"text,label\n\n", r"a.csv must have at least one row; got only the columns"),
        ("a.csv", b"", r"a.csv must have at least one row; got an empty file"),
        ("a.csv", b"\xef\xbb\xbf", r"a.csv must have at least one row; got an empty file"),
        ("a.jsonl", b'{"text": "a"}\n\n{"te', r"a.jsonl cannot be read \(line 3: Unterminated"),
        ("a.jsonl", b"[1]", r"line 1 of .*a.jsonl must be a JSON object; got '\[1\]'"),
        ("a.jsonl", b'{"a": "caf\xe9"}', r"a.jsonl cannot be read \('utf-8' codec"),
        ("a.jsonl", b"", r"a.jsonl must have at least one row; got an empty file"),
        ("a.jsonl", b"\xef\xbb\xbf", r"a.jsonl must have at least one row; got an empty file"),
        (
            "a.tsv",
            b"text\tlabel\na\tb\n",
            r"pass a file with one JSON object per line, or a .csv or .parquet",
        ),
        ("a.json", b"[" + b"1," * 99 + b"1]", r"must be a JSON object; got '\[1,.{,200}…: write"),
        ("a.parquet", b"none", r"a.parquet cannot be read"),
    ],
)
def test_errors_name_the_file(tmp_path, capfd, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        load_file(path)
    assert capfd.readouterr().err == ""


def test_a_missing_package_is_not_blamed_on_the_file(tmp_path, monkeypatch):
    save(tmp_path / "a.parquet", ["a"])
    monkeypatch.setitem(sys.modules, "datasets", None)
    for load, source in (
        (load_file, tmp_path / "a.parquet"),
        (load_hub_split, HubSplit("owner/reviews", None, "test")),
    ):
        with pytest.raises(MissingPackageError, match=r"pip install datasets$"):
            load(source)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("hub:SetFit/subj:train", HubSplit("SetFit/subj", None, "train")),
        ("hub:squad:validation[:10%]", HubSplit("squad", None, "validation[:10%]")),
        ("hub:openai/gsm8k:main:train[5:1000]", HubSplit("openai/gsm8k", "main", "train[5:1000]")),
    ],
)
def test_valid_split_names(name, split):
    assert hub_split(name) == split
    assert str(split) == name


@pytest.mark.parametrize("name", ["hub:", "hub:SetFit/subj", "hub:SetFit/subj:", "hub:a:b:c:d"])
def test_invalid_split_names(name):
    with pytest.raises(
        ValueError, match=r"must have the form hub:NAME:SPLIT or hub:NAME:CONFIGURATION:SPLIT; got"
    ):
        hub_split(name)


def test_loading_splits_from_the_hub(tmp_path, monkeypatch):
    """The split is in a local folder with the data set's name, so `datasets` needs no network."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "owner" / "reviews"
    folder.mkdir(parents=True)
    Dataset.from_dict({"text": ["a", "b", "c"]}).to_parquet(folder / "test.parquet")
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert list(load_hub_split(HubSplit("owner/reviews", None, "test[:2]"))) == [
        {"text": "a"},
        {"text": "b"},
    ]
    with pytest.raises(
        ValueError, match=r"hub:owner/reviews:train cannot be read .*: check the name, the split"
    ):
        load_hub_split(HubSplit("owner/reviews", None, "train"))
    with pytest.raises(ValueError, match=r"hub:owner/other:train cannot be read .*other.*: check the name"):
        load_hub_split(HubSplit("owner/other", None, "train"))

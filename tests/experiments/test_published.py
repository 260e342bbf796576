"""The published numbers: what is known is typed and has a source, what is not known is None."""

import json

import pytest

from plr_dspy.experiments.analysis.published import load_published

ROW = {
    "task": "mr",
    "dataset": "MR",
    "method": "Static",
    "num_demos": 8,
    "model": "some model",
    "accuracy": 0.5,
    "source": "https://example.org/table",
}


def written(*rows, schema=1):
    data = {
        "schema": schema,
        "paper": "a paper",
        "note": "a note",
        "results": [{**ROW, **row} for row in rows],
    }
    return json.dumps(data).encode()


def test_the_bundled_numbers_are_fractions_with_a_source():
    published = load_published()
    assert published.paper == "arXiv:2603.21373"
    assert published.results
    assert all(0 < result.accuracy < 1 for result in published.results)
    assert all(result.source.startswith("https://") for result in published.results)


def test_the_bundled_bests():
    published = load_published()
    best = {
        task: published.best(task) for task in ("mr", "sst5", "trec", "agnews", "subj", "gsm8k", "deepmath")
    }
    assert {task: result and result.accuracy for task, result in best.items()} == {
        "mr": 0.9313,
        "sst5": 0.5596,
        "trec": 0.7063,
        "agnews": 0.8631,
        "subj": 0.9359,
        "gsm8k": 0.4285,
        "deepmath": 0.4636,
    }


def test_what_is_not_known_is_none_and_the_note_says_so():
    published = load_published()
    assert published.best("math500") is None
    assert ("mr", 8, "PLR-EMA") not in published.cells()
    assert "not known" in published.note


def test_a_cell_is_found_by_task_demos_and_method():
    published = load_published(
        written(
            {"accuracy": 0.5},
            {"accuracy": 0.6, "num_demos": 16},
            {"accuracy": 0.7, "method": "Top-K"},
            {"accuracy": 0.8, "task": "subj"},
        )
    )
    assert published.cells() == {
        ("mr", 8, "Static"): 50.0,
        ("mr", 16, "Static"): 60.0,
        ("mr", 8, "Top-K"): 70.0,
        ("subj", 8, "Static"): 80.0,
    }
    assert published.best("mr").accuracy == 0.7


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (written({}, schema=2), r"schema\n.* should be 1"),
        (written({"accuracy": 93.13}), r"results.0.accuracy\n.* less than or equal to 1"),
        (written({"accuracy": "high"}), "accuracy"),
        (b"{}", "results"),
    ],
)
def test_other_data_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        load_published(data)


def test_the_sentence_below_a_table():
    published = load_published()
    assert "mr 93.1, trec 70.6" in published.sentence(["mr", "math500", "trec"])
    assert published.sentence(["math500"]) is None
    assert published.cells() == {}, "no cell of the tables is known; where one is, give it here"

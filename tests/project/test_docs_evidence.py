"""Measured figures have one home, docs/evidence.md: the README, other summaries and the picture agree with it."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import picture  # noqa: E402

EVIDENCE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
MEASURED = re.compile(r"(?<![\d.])[+-]?\.\d{3}\b")
"""Accuracies and differences, as all pages write them."""


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/proposal.md"])
def test_figures_of_a_summary_are_those_of_the_evidence(page):
    stated = set(MEASURED.findall((ROOT / page).read_text(encoding="utf-8")))
    assert stated <= set(MEASURED.findall(EVIDENCE))


def test_the_readme_can_be_read_in_one_go():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_each_program_that_the_evidence_names_is_there():
    named = set(re.findall(r"python\s+((?:benchmarks|examples)/\w+\.py)", EVIDENCE))
    assert len(named) > 5
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]


def test_the_picture_reads_the_tables():
    text = """
| seed | original | chosen | gain | 12 random orders: worst / mean / best |
|---|---|---|---|---|
| 0 | .640 | .800 | +.160 | .515 / .661 / .790 |
| mean | .606 | .775 | **+.169** | |

| task (best of all orders) | limit | paper MLE | Top-K | halving of all orders | `PLReorder` |
|---|---|---|---|---|---|
| MR (.832) | 250 | .697 | .688 | .737 | **.774** |
| | 1,000 | .761 | .742 | .774 | **.799** |
| SUBJ (.784) | 250 | .605 | .598 | **.664** | .665 |
"""
    assert picture.seeds(text) == [{"original": 0.64, "chosen": 0.8, "worst": 0.515, "best": 0.79}]
    movies, subjectivity = picture.tasks(text)
    assert (movies.name, movies.best) == ("MR", 0.832)
    assert movies.curves["`PLReorder`"] == [(250, 0.774), (1000, 0.799)]
    assert subjectivity.curves["halving of all orders"] == [(250, 0.664)]


def test_the_picture_can_be_drawn_again(tmp_path):
    picture.main(["--out", str(tmp_path / "picture.png")])
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")

"""Measured figures have one home, a page that has the command too: summaries and the picture agree with it."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import picture  # noqa: E402

MEASURING = ("evidence", "fewshot", "calibration", "metrics")
EVIDENCE = "".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in MEASURING)
MEASURED = re.compile(r"(?<![\d.])[+-]?\.\d{3}\b")
"""Accuracies and differences, as all pages write them."""


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/proposal.md"])
def test_figures_of_a_summary_are_those_of_the_evidence(page):
    stated = set(MEASURED.findall((ROOT / page).read_text(encoding="utf-8")))
    assert stated <= set(MEASURED.findall(EVIDENCE))


def test_the_docs_name_each_benchmark_and_no_program_that_is_gone():
    pages = [*(ROOT / "docs").glob("*.md"), *map(ROOT.joinpath, ("README.md", "CONTRIBUTING.md", "Makefile"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"python\s+((?:benchmarks|examples)/\w+\.py)", text))
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]
    commands = [path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text("utf-8")]
    assert {f"benchmarks/{path.name}" for path in commands} <= named


def test_the_picture_can_be_drawn_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["picture.py", "--out", str(tmp_path / "picture.png")])
    picture.main()
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")

"""docs/architecture.md names files that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"[a-z_]+(?:/[a-z_]+)+\.py", TEXT))))
def test_files_that_are_named_are_there(name):
    assert any((folder / name).is_file() for folder in (ROOT / "plr_dspy", ROOT))


def test_all_packages_are_named():
    packages = {path.parent.name for path in (ROOT / "plr_dspy").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"`([a-z_]+)`", TEXT))

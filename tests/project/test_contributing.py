"""What is there for those who carry the project on: the citation, the hooks, and the guide."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

import plr_dspy

ROOT = Path(__file__).parents[2]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == plr_dspy.__version__
    assert {"title", "message", "authors"} <= citation.keys()
    assert f'name = "{citation["authors"][0]["name"]}"' in read("pyproject.toml")
    assert f'license = "{citation["license"]}"' in read("pyproject.toml")
    (paper,) = citation["references"]
    assert "2603.21373" in paper["url"]
    assert {"type", "title", "authors"} <= paper.keys()


def test_the_changelog_begins_with_this_version():
    assert re.search(r"^## (.+)$", read("CHANGELOG.md"), re.M)[1] == plr_dspy.__version__


def test_the_hooks_are_the_linters_of_make():
    (repository,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    scripts = [shlex.split(hook["entry"])[2] for hook in repository["hooks"]]
    hooks = [re.sub(r'"\$\{VENV:-\.venv\}/bin/(.+?)"', r"\1", script) for script in scripts]
    (recipe,) = re.findall(r"^lint: .*\n((?:\t.*\n)+)", read("Makefile"), re.M)
    linters = [line.removeprefix("\t$(BIN)/").removesuffix(" .") for line in recipe.splitlines()]
    assert [hook.replace(" --force-exclude", "").replace(' "$@"', "") for hook in hooks] == linters


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([\w.]+/[\w./]+)`", read("CONTRIBUTING.md")))))
def test_files_that_the_guide_names_are_there(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize("link", re.findall(r"\]\(([^()\s]+)\)", read("CONTRIBUTING.md")))
def test_links_of_the_guide_lead_somewhere(link):
    path, _, anchor = link.partition("#")
    headings = re.findall(r"^#+ (.+)$", read(path), re.M)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    assert not anchor or anchor in slugs

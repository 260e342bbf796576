"""The README, CONTRIBUTING and the pages of docs/: their code runs, links and files exist, and the site builds."""

import ast
import asyncio
import csv
import os
import re
import socket
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import dspy
import fakes
import picture
import pytest
from brief import Sentiment, accuracy
from fakes import Async, digest, exact_match, questions

import plr_dspy
import plr_dspy.baselines
import plr_dspy.local
from plr_dspy.compiling.plan import BUDGETS
from plr_dspy.data import load_reviews

ROOT = Path(__file__).parents[2]
ROOTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SKILL.md")]
PAGES = {str(path.relative_to(ROOT)): path for path in [*ROOTS, *sorted((ROOT / "docs").glob("*.md"))]}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- not run: .+? -->\s*\Z")
LINK = re.compile(r"\]\(([^()\s]+)\)")
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?(https?://[^\s\">]+)")
MOST_NOT_RUN = 3
BUDGET = 60
"""Budget of program calls in these tests. It replaces the budget of `auto="light"` and budgets above 99 on pages."""

EXAMPLES = questions(40)
LABELS = ["negative", "positive"]


def label_shares(demos, text):
    share = 0.2 + 0.6 * digest(f"{demos[:1]}{text}")
    return [share, 1.0 - share]


def few_shot(signature="question -> answer", examples=EXAMPLES):
    return dspy.LabeledFewShot(k=5).compile(dspy.Predict(signature), trainset=examples)


def labeled():
    reviews = load_reviews("train")[:40]
    program = few_shot(Sentiment, reviews)
    return {"trainset": reviews, "Sentiment": Sentiment, "acc": accuracy, "program": program}


def of_questions():
    return {"trainset": EXAMPLES, "acc": exact_match, "program": few_shot()}


def of_pages(names, make):
    return {f"docs/{name}.md": make for name in names.split()}


def reviews_in_a_file():
    """Write the CSV file that the README reads."""
    with open("reviews.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, ["review", "sentiment"])
        rows.writeheader()
        rows.writerows(example.toDict() for example in load_reviews("train"))
    return {}


PRESUPPOSED = {
    "README.md": reviews_in_a_file,
    "SKILL.md": lambda: {"rows": load_reviews("train")[:120], "acc": accuracy},
    **of_pages("method fewshot", labeled),
    **of_pages("budget report", of_questions),
    "docs/order.md": lambda: {
        **of_questions(),
        "student": dspy.Predict("question -> answer"),
        "score_on": lambda ordering, example: float(digest(f"{ordering} {example}") < 0.6),
    },
    "docs/servers.md": lambda: {
        "trainset": EXAMPLES,
        "acc": lambda example, answered: answered.answer == "positive",
    },
    "docs/calibration.md": lambda: {**labeled(), "devset": load_reviews("test")[:20]},
}
"""Functions that create the variables and files that the code of a page needs."""


def blocks(page):
    """Return each Python block of a page: the number of its first line, its code, and whether to run it."""
    text = PAGES[page].read_text(encoding="utf-8")
    return [
        (text[: match.start()].count("\n") + 1, match[2], not NOT_RUN.search(text[: match.start()]))
        for match in FENCE.finditer(text)
        if match[1] == "python"
    ]


@pytest.fixture
def no_network(page, tmp_path, monkeypatch):
    """Replace all models with fakes, block the network, and use a new folder and settings for one page."""
    of_reviews = page not in of_pages("budget report order servers", None)
    engine = fakes.LabelEngine(LABELS, label_shares) if of_reviews else fakes.engine_for(EXAMPLES)

    class FakeLM(dspy.LM):
        def __init__(self, model, **options):
            kept = {name: v for name, v in options.items() if name in ("temperature", "max_tokens")}
            super().__init__(model, engine=engine, cache=False, provider=fakes.FineTuning(), **kept)

    def plain_lm(model="local", **_):
        engine = fakes.PlainLabels(lean=0.5)
        return real(f"fake/{model}", engine=engine, async_engine=Async(engine), cache=False)

    @contextmanager
    def no_server(*_, **__):
        yield plain_lm()

    def refused(_, address):
        tried.append(address)
        raise OSError("no network in this test")

    real = dspy.LM
    tried = []
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(dspy, "LM", FakeLM)
    monkeypatch.setattr(plr_dspy, "completion_lm", plain_lm)
    monkeypatch.setattr(plr_dspy.local, "local_lm", no_server)
    monkeypatch.setitem(BUDGETS, "light", BUDGET)
    monkeypatch.chdir(tmp_path)
    before = {name: getattr(dspy.settings, name) for name in ("lm", "adapter", "callbacks", "track_usage")}
    dspy.configure(lm=FakeLM("fake/order-sensitive"), adapter=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    dspy.configure(**before)
    assert not tried


def run_page(page):
    """Run the code of a page and return the names that it defines."""
    namespace = {"__name__": "page", **PRESUPPOSED.get(page, dict)()}
    for line, code, run in blocks(page):
        if run:
            code = re.sub(r"max_metric_calls=\d{3,}", f"max_metric_calls={BUDGET}", code)
            # Number the lines as on the page, so that tracebacks point to the page.
            module = ast.parse(code, str(PAGES[page]))
            ast.increment_lineno(module, line)
            exec(compile(module, str(PAGES[page]), "exec"), namespace)
    return namespace


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_the_code_of_a_page_runs(page, no_network):
    run_page(page)


@pytest.mark.parametrize("page", ["docs/servers.md"])
def test_served_programs_work_in_other_threads_without_configured_models(page, no_network):
    served = run_page(page)
    question = EXAMPLES[0].question
    first = served["handle"](EXAMPLES[0].question)
    dspy.configure(lm=None, adapter=None)
    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(served["handle"], [question] * 4)) == {first}
    assert asyncio.run(served["handle_async"](question)) == first


def test_at_most_three_blocks_are_not_run_and_the_api_page_lists_every_public_name():
    not_run = []
    for page in PAGES:
        not_run += [(page, line) for line, _, run in blocks(page) if not run]
    assert len(not_run) <= MOST_NOT_RUN, not_run
    listed = set(re.findall(r"^::: (\S+)$", PAGES["docs/api.md"].read_text(encoding="utf-8"), re.M))
    public = {f"plr_dspy.{name}" for name in plr_dspy.__all__}
    public |= {f"plr_dspy.baselines.{name}" for name in plr_dspy.baselines.__all__}
    assert public - listed == {"plr_dspy.__version__"}


def test_errors_in_the_skill_are_messages_of_the_package():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "plr_dspy").rglob("*.py")]
    table = PAGES["SKILL.md"].read_text(encoding="utf-8").partition("| error | fix |")[2]
    errors = re.findall(r"^\| `(.+?)` \|", table, re.M)
    assert len(errors) >= 5
    for error in errors:
        text = error.removeprefix("trainset[0] ")
        assert any(text in source for source in sources), error


BRITISH = re.compile(
    r"labelled|learnt|licence|modelled|cancelled|(?:behavi|col|fav|neighb)our|centred|normalis|optimis|summaris",
    re.I,
)


def test_texts_use_american_spelling():
    """The setting "unlabelled" of a published method keeps its name."""
    paths = [*PAGES.values(), *(ROOT / "notebooks").glob("*.ipynb")]
    for folder in ("benchmarks", "examples"):
        paths += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")]
    for path in paths:
        text = path.read_text(encoding="utf-8").replace('"unlabelled"', "").replace("PDO unlabelled", "")
        assert not BRITISH.findall(text), path


def without_code(path):
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path):
    """Return the anchors of a file's headings."""
    headings = re.findall(r"^#+ (.+)$", without_code(path), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_linked_files_and_headings_exist(page):
    for target in LINK.findall(without_code(PAGES[page])):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        path = (PAGES[page].parent / name).resolve() if name else PAGES[page]
        assert path.is_file(), f"{page} links to a missing file: {target}"
        assert not anchor or anchor in anchors(path), f"{page} links to a missing heading: {target}"


def test_the_navigation_has_all_pages_and_the_architecture_every_package():
    listed = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert listed == {Path(page).name.lower() for page in PAGES} | notebooks
    packages = {path.parent.name for path in (ROOT / "plr_dspy").glob("*/__init__.py")}
    named = re.findall(r"`([a-z_]+)`", PAGES["docs/architecture.md"].read_text(encoding="utf-8"))
    assert packages <= set(named)


def test_the_site_builds_and_loads_nothing_from_other_sites(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    listed = re.findall(r"\]\((\w+)\.html\): (\w|`)", (tmp_path / "llms.txt").read_text())
    assert {name for name, _ in listed} == {path.stem for path in (ROOT / "docs").glob("*.md")}
    for page in tmp_path.rglob("*.html"):
        loaded = LOADED.findall(page.read_text())
        assert not loaded, f"{page.name} loads {loaded}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_files_named_on_a_page_exist(page):
    named = set(re.findall(r"`([\w.]+(?:/[\w.]+)+/?)`", PAGES[page].read_text(encoding="utf-8")))
    assert len(named) > 10
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not [name for name in missing if not (ROOT / "plr_dspy" / name).exists()]


MEASURING = ("evidence", "fewshot", "calibration")
EVIDENCE = "".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in MEASURING)
MEASURED = re.compile(r"(?<![\d.])[+-]?\.\d{3}\b")
"""A pattern for accuracies and differences on the pages."""


def test_figures_in_the_readme_are_on_the_pages_with_evidence():
    stated = set(MEASURED.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    assert stated <= set(MEASURED.findall(EVIDENCE))


def test_the_docs_name_every_benchmark_and_only_existing_programs():
    others = ("README.md", "CONTRIBUTING.md", "Makefile", "benchmarks/README.md")
    pages = [*(ROOT / "docs").glob("*.md"), *map(ROOT.joinpath, others)]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"python\s+((?:benchmarks|examples)/\w+\.py)", text))
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]
    commands = [
        path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text("utf-8")
    ]
    assert {f"benchmarks/{path.name}" for path in commands} <= named


def test_the_figure_of_the_readme_can_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["picture.py", "--out", str(tmp_path / "picture.png")])
    picture.main()
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")

"""A release: the wheel and the sdist are built, checked, and used without the repository."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOADED = ["__init__.pyi", "local/llama_child.py", "py.typed"]
LOADED += ["data/reviews_test.jsonl", "data/reviews_train.jsonl"]
LOADED_AT_RUN_TIME = {f"plr_dspy/{name}" for name in LOADED}

for module in ("build", "hatchling", "twine"):
    pytest.importorskip(module, reason="needs the extra `dev`")


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a folder with the tracked files, or with the files of an unpacked sdist."""
    if not (ROOT / ".git").exists():
        return ROOT
    copy = tmp_path_factory.mktemp("checkout")
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def release(checkout, tmp_path_factory):
    """Return a folder with an sdist and the wheel built from this sdist."""
    folder = tmp_path_factory.mktemp("release")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout)
    return folder


@pytest.fixture(scope="module")
def wheel(release):
    (path,) = release.glob("*.whl")
    return path


def contents(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_citation_and_the_changelog_name_this_version():
    version = re.search(r'__version__ = "(.+)"', (ROOT / "plr_dspy" / "_version.py").read_text())[1]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "title", "message", "authors"} <= citation.keys()
    assert "2603.21373" in citation["references"][0]["url"]
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert (citation["version"], citation["license"], headings[0]) == (version, "MIT", version)


def test_the_release_passes_twine_and_has_a_license_and_a_command(release, wheel):
    assert len(list(release.iterdir())) == 2
    run(sys.executable, "-m", "twine", "check", "--strict", *release.iterdir())
    named = {name.partition(".dist-info/")[2]: data for name, data in contents(wheel).items()}
    assert named["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert b"plr-dspy = plr_dspy.cli:main" in named["entry_points.txt"]


def test_the_wheel_contains_only_the_package(wheel, checkout):
    held = {name: data for name, data in contents(wheel).items() if ".dist-info/" not in name}
    assert held == {
        path.relative_to(checkout).as_posix(): path.read_bytes()
        for path in (checkout / "plr_dspy").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    names = held.keys()
    assert names >= LOADED_AT_RUN_TIME
    others = {name for name in names if not name.endswith(".py")}
    assert others < LOADED_AT_RUN_TIME, "the wheel has a data file that LOADED does not list"


def test_the_sdist_contains_the_tests(release):
    (path,) = release.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "Makefile", "constraints.txt", "pyproject.toml"} <= names
    assert {"tests/project/test_release.py", "tests/fakes.py", "docs/index.md"} <= names
    assert "examples/paper/published.csv" in names
    assert not any(name.startswith((".git/", ".venv", "runs", "dist")) for name in names)


PROGRAM = """
    import runpy
    import sys
    from pathlib import Path

    import dspy
    import plr_dspy
    from dspy.utils import DummyLM
    from plr_dspy.data import load_reviews

    def acc(example, prediction, trace=None):
        return example.sentiment == prediction.sentiment

    assert Path(plr_dspy.__file__).parent.parent == Path(TARGET), plr_dspy.__file__
    answers = [{"sentiment": label} for label in ("positive", "negative", "positive")]
    dspy.configure(lm=DummyLM(answers * 40))
    trainset = load_reviews("train")[:40]
    student = dspy.LabeledFewShot(k=4).compile(dspy.Predict("review -> sentiment"), trainset=trainset)
    optimizer = plr_dspy.PLReorder(acc, max_metric_calls=40, num_threads=2, display_progress=False, log_dir="log")
    optimizer.compile(student, trainset=trainset).save("program.json")
    again = dspy.Predict("review -> sentiment")
    again.load("program.json")
    assert len(again.demos) == 4
    optimizer.report.plot().savefig("report.png")
    assert 0 < optimizer.report.program_calls["total"] <= 40
    sys.argv = ["plr-dspy", "report", "log"]
    runpy.run_path(str(Path(TARGET, "bin", "plr-dspy")), run_name="__main__")
"""


def test_the_wheel_works_without_the_repository(wheel, tmp_path):
    target = tmp_path / "target"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    run(*pip, "--target", target, wheel)
    env = {**os.environ, "PYTHONPATH": str(target), "DSPY_CACHEDIR": str(tmp_path / "cache")}
    program = textwrap.dedent(PROGRAM).replace("TARGET", repr(str(target)))
    assert "program calls" in run(sys.executable, "-c", program, cwd=elsewhere, env=env)
    assert (elsewhere / "report.png").read_bytes().startswith(b"\x89PNG")

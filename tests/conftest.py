"""Settings of a test run: its own DSPy cache, no network access, and the order of tests."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp(prefix="plr_dspy_cache_")
atexit.register(shutil.rmtree, os.environ["DSPY_CACHEDIR"], ignore_errors=True)
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

# Shells start background jobs with SIGINT ignored, but some tests need Ctrl-C to work.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Set no deadline, because the time per example depends on the machine's load.
settings.register_profile("plr_dspy", deadline=None, max_examples=50)
settings.load_profile("plr_dspy")

# Limit threads, because spinning threads would slow down all test processes.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["CI"] = "true"  # Local models then use one thread.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

LOCAL_MODEL = ["test_completion", "test_end_to_end", "test_local"]
LOCAL_MODEL += ["test_paper_run", "test_quickstart"]
"""Test files that use the local model. They run in one process, because a second server would be slow."""
CHILDREN = ("test_paper_failures", "test_resume")
"""Test files that start child processes through a common fork server, which takes seconds to start."""
LONGEST = ("test_every_optimizer", "test_docs", "test_release", "test_imports")
"""The slowest of all other test files. They start early, so that all processes end at about the same time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = [*LOCAL_MODEL, *CHILDREN, *LONGEST]
    places = {name: place for place, name in enumerate(order)}
    items.sort(key=lambda item: places.get(item.path.stem, len(order)))


def pytest_collection_finish() -> None:
    """Speed up tests: exclude imported objects from garbage collection, and reuse pydantic's schema of `str`.

    Otherwise, DSPy builds the schema again for each field of each demo in each prompt. This took
    a seventh of the total time.
    """
    import pydantic
    from dspy.adapters import utils

    text = pydantic.TypeAdapter(str)
    utils.TypeAdapter = lambda kind: text if kind is str else pydantic.TypeAdapter(kind)
    gc.collect()
    gc.freeze()
    # Collect garbage less often, because most objects are freed without a collection.
    gc.set_threshold(20_000, 50, 100)


# The vLLM server takes gigabytes, so only `make test-vllm` runs the tests that need it.
collect_ignore = [] if "PLR_DSPY_VLLM" in os.environ else ["on_vllm"]


@pytest.fixture(scope="session")
def server() -> Iterator["LocalServer"]:  # noqa: F821
    from plr_dspy.local import LocalServer

    with LocalServer(context_length=1024) as running:
        yield running


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield an engine that knows the answers to the `EXAMPLES` in the test's file."""
    import dspy
    from fakes import fake_lm

    lm, engine = fake_lm(request.module.EXAMPLES)
    with dspy.context(lm=lm):
        yield engine


@pytest.fixture
def quiet() -> Iterator[None]:
    """Use one thread, and a model that answers "no" or "yes"."""
    import dspy
    from fakes import LabelEngine, lm_of
    from yes_or_no import LABELS

    engine = LabelEngine(LABELS, lambda demos, text: [0.5, 0.5])
    with dspy.context(lm=lm_of(engine), num_threads=1):
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file in one process. The files in `LOCAL_MODEL` share a process, like those in `CHILDREN`.

    `xdist_group` marks would do the same, but pytest 9.2 with xdist 3.8 ignores them.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = Path(nodeid.partition("::")[0]).stem
            if file in LOCAL_MODEL:
                return "local model"
            return "children" if file in CHILDREN else file

    config.option.loadscopereorder = False
    return ByFile(config, log)

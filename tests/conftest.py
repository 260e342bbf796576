"""Every test run has a DSPy cache of its own, and no network look-ups."""

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

# Shells start background jobs with SIGINT ignored, but Ctrl-C is tested here too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does.
settings.register_profile("plr_dspy", deadline=None, max_examples=50)
settings.load_profile("plr_dspy")

# Test processes share the cores: spinning threads would slow them all down.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["CI"] = "true"  # one thread for local models
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

LOCAL_MODEL = ["test_cli", "test_completion", "test_end_to_end", "test_local"]
LOCAL_MODEL += ["test_paper_run", "test_quickstart"]
"""Files whose tests need it run in one process, as two servers share the cores."""
CHILDREN = ("test_paper_failures", "test_resume")
"""They share a server that forks processes, which takes seconds to start."""
LONGEST = ("test_every_optimizer", "test_docs", "test_release", "test_imports")
"""Others that begin early, so that none is left over at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = [*LOCAL_MODEL, *CHILDREN, *LONGEST]
    places = {name: place for place, name in enumerate(order)}
    items.sort(key=lambda item: places.get(item.path.stem, len(order)))


def pytest_collection_finish() -> None:
    """Take what has been imported so far out of garbage collection.

    And pydantic the schema of a text: DSPy has a new one made for each field of each demo of each prompt,
    which was a seventh of all the time.
    """
    import pydantic
    from dspy.adapters import utils

    text = pydantic.TypeAdapter(str)
    utils.TypeAdapter = lambda kind: text if kind is str else pydantic.TypeAdapter(kind)
    gc.collect()
    gc.freeze()
    # Fewer collections of what tests make: most of it is free without one.
    gc.set_threshold(20_000, 50, 100)


# A server that takes gigabytes: `make test-vllm`.
collect_ignore = [] if "PLR_DSPY_VLLM" in os.environ else ["on_vllm"]


@pytest.fixture(scope="session")
def server() -> Iterator["LocalServer"]:  # noqa: F821
    from plr_dspy.local import LocalServer

    with LocalServer(context_length=1024) as running:
        yield running


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield an engine that knows the `EXAMPLES` of the test's file."""
    import dspy
    from fakes import fake_lm

    lm, engine = fake_lm(request.module.EXAMPLES)
    with dspy.context(lm=lm):
        yield engine


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file, and those of the local model, together.

    Marks of a group would do the same, but pytest 9.2 and xdist 3.8 overlook them together.
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

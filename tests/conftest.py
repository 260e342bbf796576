"""Every test run has a DSPy cache of its own, and no network look-ups."""

import atexit
import gc
import os
import shutil
import signal
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

# Shells start jobs of the background with SIGINT ignored, and Python leaves it so: Ctrl-C is tested all the same.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does.
settings.register_profile("plr_dspy", deadline=None)
settings.load_profile("plr_dspy")

# Other processes of the tests share the cores: threads that wait for it by spinning make both slower.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["CI"] = "true"  # one thread for local models
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

LOCAL_MODEL = {
    "test_cli",
    "test_end_to_end",
    "test_paper_run",
    "test_label_local",
    "test_local",
    "test_notebooks",
    "test_quickstart",
}
"""Their tests run one after another in one process: two servers would share the cores."""
WITHOUT_MODEL = ("test_runs[02_",)
"""Those of them that call no model."""


def pytest_collection_finish() -> None:
    """Spare the collector of garbage what has been imported by now."""
    gc.collect()
    gc.freeze()


# A server that takes gigabytes: `make test-vllm`.
collect_ignore = [] if "PLR_DSPY_VLLM" in os.environ else ["on_vllm"]


@pytest.fixture(scope="session")
def server() -> Iterator["LocalServer"]:  # noqa: F821
    """The real local model, started once."""
    from plr_dspy.local import LocalServer

    with LocalServer(context_length=1024) as running:
        yield running


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of the local model together; the others go wherever a process is free.

    Marks of a group would do the same, but pytest 9.2 and xdist 3.8 overlook them together.
    """
    from xdist.scheduler import LoadScopeScheduling

    class LocalModelTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            local = Path(nodeid.partition("::")[0]).stem in LOCAL_MODEL
            return "local model" if local and not any(name in nodeid for name in WITHOUT_MODEL) else nodeid

    return LocalModelTogether(config, log)

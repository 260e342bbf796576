"""Every test run has a DSPy cache of its own, and no network look-ups."""

import os
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp(prefix="plr_dspy_cache_")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

# How long an example takes depends on what else the machine does.
settings.register_profile("plr_dspy", deadline=None)
settings.load_profile("plr_dspy")

LOCAL_MODEL = {
    "test_cli",
    "test_end_to_end",
    "test_experiment_run",
    "test_label_local",
    "test_local",
    "test_resume_local",
}
"""Their tests run one after another in one process: two servers would share the cores."""

# A server that takes gigabytes: `make test-vllm`.
collect_ignore = [] if "PLR_DSPY_VLLM" in os.environ else ["on_vllm"]


@pytest.fixture(scope="session")
def server() -> Iterator["LocalServer"]:  # noqa: F821
    """The real local model, started once."""
    from plr_dspy.local import LocalServer

    with LocalServer(context_length=1024) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the local model together, for pytest-xdist."""
    for item in items:
        if item.path.stem in LOCAL_MODEL:
            item.add_marker(pytest.mark.xdist_group("local model"))

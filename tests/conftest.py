"""Every test run has a DSPy cache of its own, and no network look-ups."""

import os
import tempfile

os.environ["DSPY_CACHEDIR"] = tempfile.mkdtemp(prefix="plr_dspy_cache_")
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

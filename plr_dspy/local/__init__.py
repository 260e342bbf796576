"""A small language model on this machine: llama.cpp's server in a child process, on loopback only."""

from typing import TYPE_CHECKING

from plr_dspy._exports import lazy_exports

if TYPE_CHECKING:
    from plr_dspy.local.server import LocalServer, local_lm
else:
    __getattr__, __dir__ = lazy_exports(__name__, {".server": ["LocalServer", "local_lm"]})

__all__ = ["LocalServer", "local_lm"]

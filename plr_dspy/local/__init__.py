"""A small language model on this machine: llama.cpp's server in a child process, on loopback only."""

from plr_dspy.local.server import LocalServer, local_lm

__all__ = ["LocalServer", "local_lm"]

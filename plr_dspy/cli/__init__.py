"""The command `plr-dspy`."""

from plr_dspy.cli.commands import main

__all__ = ["main"]

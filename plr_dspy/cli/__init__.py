"""The command `plr-dspy`."""

from plr_dspy.cli.commands import main as main

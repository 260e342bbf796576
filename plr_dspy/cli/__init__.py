"""The command line `plr-dspy`."""

from plr_dspy.cli.commands import main as main

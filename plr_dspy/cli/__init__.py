"""The command-line tool `plr-dspy`."""

from plr_dspy.cli.commands import main as main

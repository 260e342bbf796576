"""The entry point of `python -m plr_dspy.cli`."""

from plr_dspy.cli.commands import main

raise SystemExit(main())

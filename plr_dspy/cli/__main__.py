"""`python -m plr_dspy.cli`."""

import sys

from plr_dspy.cli.commands import main

sys.exit(main())

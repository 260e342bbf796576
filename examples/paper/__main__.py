"""The command `python examples/paper`. It can be run from any folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paper.commands import main

sys.exit(main())

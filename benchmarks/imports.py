"""What importing the package and calling its command cost, beside importing DSPy alone.

    python benchmarks/imports.py

CPU seconds (user and system) of child processes: medians of several runs, made in turns. Nothing is imported in this
process, so that the operating system's cache of files is what all of them share.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

NAMED = "compile app.py:program --metric app.py:metric --train train.jsonl --inputs question --lm local --out p.json"
DSPY = "import dspy"
COMMANDS = {
    "python": ["-c", "pass"],
    DSPY: ["-c", DSPY],
    "import dspy, plr_dspy": ["-c", "import dspy, plr_dspy"],
    "... and PLReorder": ["-c", "import dspy; from plr_dspy import PLReorder"],
    "... and completion_lm": ["-c", "import dspy; from plr_dspy import completion_lm"],
    "plr-dspy --help": ["-m", "plr_dspy.cli", "--help"],
    "plr-dspy compile, bad argument": ["-m", "plr_dspy.cli", *NAMED.split(), "--auto", "lavish"],
    "plr-dspy compile, no such file": ["-m", "plr_dspy.cli", *NAMED.split()],
}


def cpu_seconds(arguments: list[str]) -> float:
    """Run Python with some arguments, and say how many CPU seconds it took."""
    before = os.times()
    subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    after = os.times()
    return sum(getattr(after, name) - getattr(before, name) for name in ("children_user", "children_system"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each command (default: 5)")
    options = parser.parse_args()
    for arguments in COMMANDS.values():  # the first run reads the files
        cpu_seconds(arguments)
    rounds = [
        {name: cpu_seconds(arguments) for name, arguments in COMMANDS.items()} for _ in range(options.runs)
    ]
    medians = {name: statistics.median(seconds[name] for seconds in rounds) for name in COMMANDS}
    print("| | CPU seconds | beyond `import dspy` | of it |\n|---|---|---|---|")
    for name, seconds in medians.items():
        print(f"| {name} | {seconds:.2f} | {seconds - medians[DSPY]:+.2f} | {seconds / medians[DSPY]:.2f} |")


if __name__ == "__main__":
    main()

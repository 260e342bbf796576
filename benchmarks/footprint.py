"""How much code a compile runs: functions and files of ours, those that run for every call, and how deep a call lies.

python benchmarks/footprint.py            # a compile of 300 calls, one thread, a language model that answers at once
python benchmarks/footprint.py --list     # and their names

A function counts by its name and file, without those in it that have no name (lambdas, generator expressions).
It runs for every call if it runs between any two answers of the model that follow on each other.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dspy
from command import options
from landscapes import SyntheticLandscape
from replay import ReplayEngine, metric, replayed_examples, replayed_program

import plr_dspy
from plr_dspy import PLReorder

PACKAGE = str(Path(plr_dspy.__file__).parent)


def name_of(code: CodeType) -> tuple[str, str] | None:
    """The file and the name of a function of ours; None of any other."""
    if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
        return None
    name: str = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
    return code.co_filename.removeprefix(f"{PACKAGE}/"), name.replace(".<locals>", "")


class Watched(ReplayEngine):
    """Notes which functions of ours run between two answers, and the frames of ours at each of them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.caller = threading.get_ident()
        self.ran: list[set[tuple[str, str]]] = [set()]
        self.frames: list[list[str]] = []

    def complete(self, request: Any) -> Any:
        threads = {threading.get_ident(): sys._getframe(), self.caller: sys._current_frames()[self.caller]}
        self.frames.append([text for frame in threads.values() for text in frames_of(frame)][::-1])
        self.ran.append(set())
        return super().complete(request)

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of a function that begins: what `sys.setprofile` calls."""
        if event == "call" and (name := name_of(frame.f_code)):
            self.ran[-1].add(name)


def frames_of(frame: FrameType | None) -> list[str]:
    """The functions of ours on a stack, the innermost first, as far as `compile`."""
    found: list[str] = []
    while frame is not None:
        if name := name_of(frame.f_code):
            if name[1].endswith(".compile"):
                break
            found.append(f"{name[0]}:{frame.f_lineno} {name[1]}")
        frame = frame.f_back
    return found


def main() -> None:
    args = options(__doc__ or "", calls=300, signal="auto", list=False)
    landscape, labels = SyntheticLandscape("mixed", 8, 1, num_examples=100), ("negative", "positive")
    engine = Watched(landscape, labels)
    common = {"max_metric_calls": args.calls, "num_threads": 1, "display_progress": False}
    optimizer = PLReorder(metric, signal=args.signal, **common)
    program, trainset = replayed_program(landscape, labels), replayed_examples(landscape, labels)
    with dspy.context(lm=dspy.LM("openai/replay", engine=engine, cache=False), adapter=dspy.ChatAdapter()):
        threading.setprofile(engine.note)
        sys.setprofile(engine.note)
        optimizer.compile(program, trainset=trainset)
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    always, deepest = set.intersection(*engine.ran[1:-1]), max(engine.frames, key=len)
    for text, functions in ("that ran", set.union(*engine.ran)), ("that ran for every call", always):
        print(f"functions {text}: {len(functions)} in {len({file for file, _ in functions})} files")
    print(f"frames of ours between compile and the program: {len(deepest)}")
    print(f"calls of the model: {engine.calls}")
    if args.list:
        print("\nFor every call:", *sorted(f"{file}: {name}" for file, name in always), sep="\n  ")
        print("\nFrom compile to the program:", *deepest, sep="\n  ")


if __name__ == "__main__":
    main()

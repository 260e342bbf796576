"""How much code a compile runs: functions and files of ours, those that run for every call, and how deep a call lies.

python benchmarks/footprint.py       # compiles of 300 calls, one thread, a language model that answers at once

Functions without a name (lambdas, generator expressions) do not count. A function runs for every call if it runs
between any two answers that follow on each other. The last compile reads log-probabilities of labels.
"""

import sys
import threading
import traceback
from types import CodeType, FrameType
from typing import Any

import dspy
from landscapes import SyntheticLandscape
from replay import ReplayEngine, metric

import plr_dspy
from plr_dspy import PLReorder


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(plr_dspy.__path__[0]) and not code.co_name.startswith("<")


class Watched(ReplayEngine):
    """Notes which functions of ours run between two answers, and how many lie on the stack at each of them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.caller = threading.get_ident()
        self.ran, self.depths = [set()], []

    def complete(self, request: Any) -> Any:
        threads = {threading.get_ident(): sys._getframe(), self.caller: sys._current_frames()[self.caller]}
        self.depths.append(sum(map(depth, threads.values())))
        self.ran.append(set())
        return super().complete(request)

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of a function that begins: what `sys.setprofile` calls."""
        if event == "call" and is_ours(frame.f_code):
            self.ran[-1].add(frame.f_code)


def depth(frame: FrameType) -> int:
    """How many functions of ours are on a stack, as far as `compile`."""
    ours = [each.f_code.co_name for each, _ in traceback.walk_stack(frame) if is_ours(each.f_code)]
    return ours.index("compile") if "compile" in ours else len(ours)


def main() -> None:
    for signal in ("score", "logprobs"):
        engine = Watched(SyntheticLandscape("mixed", 8, 1, num_examples=100))
        optimizer = PLReorder(metric, max_metric_calls=300, signal=signal, num_threads=1, display_progress=False)
        lm = dspy.LM("openai/replay", engine=engine, cache=False)
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            threading.setprofile(engine.note)
            sys.setprofile(engine.note)
            optimizer.compile(engine.program(dspy.Predict), trainset=engine.examples())
            sys.setprofile(None)
            threading.setprofile(None)
        always = set.intersection(*engine.ran[1:-1])
        print(f"{signal=}, calls of the model: {engine.calls}")
        for text, functions in ("that ran", set.union(*engine.ran)), ("that ran for every call", always):
            print(f"  functions {text}: {len(functions)} in {len({code.co_filename for code in functions})} files")
        print(f"  frames of ours between compile and the program: {max(engine.depths)}")


if __name__ == "__main__":
    main()

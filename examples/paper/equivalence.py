"""Whether two LaTeX expressions are equal, asked of math-verify in a child process, which runs this same file.

math-verify's own time limits are signals, which only a main thread may set, and a metric runs in worker threads. An
expression can keep a computer algebra system busy for ever, in code that no thread can interrupt: the operating system
ends the child when a pair takes too much processor time, and the parent's clock does so where it cannot.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from functools import lru_cache
from typing import Any

START_SECONDS = 120.0
PAIR_SECONDS = 60.0  # by the clock; the child's own limit is of processor time, the same on a busy machine
CPU_SECONDS = 3
MEMORY_BYTES = 2 * 2**30
DIGITS = 60
MAX_EXACT = 10**10_000  # numbers beyond it, and below its inverse, are only compared to so many digits
DECIMAL = re.compile(r"(\d+)\.(\d+)")


class Checker:
    """A child process that compares expressions, one pair at a time; safe in threads.

    A pair that takes more than `max_seconds` by the clock ends the child; the next one starts another.
    """

    def __init__(self, *, max_seconds: float = PAIR_SECONDS) -> None:
        self.max_seconds = max_seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def equal(self, predicted: str, gold: str) -> bool:
        """Whether two LaTeX expressions are equal; those that cannot be read, or take too long, are not."""
        require_library()
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._start()
            reply = self._reply([predicted, gold], seconds=self.max_seconds)
        return bool(reply and json.loads(reply))

    def close(self) -> None:
        """End the child; the next comparison starts another."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._end()
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        # What a simplification finds can depend on the order of sets.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"}
        # A session of its own, since an interrupt at the keyboard is the parent's to handle.
        pipes |= {"encoding": "utf-8", "env": environment, "start_new_session": True}
        self._child = subprocess.Popen([sys.executable, __file__], **pipes)
        if not self._reply(sys.path, seconds=START_SECONDS):
            raise RuntimeError("the process that compares answers ended before it was ready")

    def _reply(self, message: list[str], *, seconds: float) -> str:
        """The child's reply to a message; an empty text where the child ended first."""
        child, reply = self._child, ""
        assert child is not None and child.stdin is not None and child.stdout is not None
        alarm = threading.Timer(seconds, child.kill)
        alarm.start()
        try:
            child.stdin.write(json.dumps(message) + "\n")
            child.stdin.flush()
            reply = child.stdout.readline()
        except OSError:
            pass  # it ended with the message unread
        finally:
            alarm.cancel()
            alarm.join()  # a late alarm must not meet the next pair
            # After an interrupt the reply is still to come, and must not be taken for the next pair's.
            if not reply or child.poll() is not None:
                self._end()
        return reply

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()  # waits for its end, and closes the pipes


_CHECKER = Checker()
atexit.register(_CHECKER.close)


@lru_cache(maxsize=100_000)
def equivalent(predicted: str, gold: str) -> bool:
    """Do what `Checker.equal` does, with a child that all callers share; each pair is compared once."""
    return _CHECKER.equal(predicted, gold)


@lru_cache(maxsize=1)
def require_library() -> None:
    """Raise ImportError, which says what to install, unless math-verify is there."""
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("comparing LaTeX answers needs math-verify: pip install 'plr-dspy[examples]'")


def answer_pairs() -> None:
    """Be the child: take the module path from the first line of the input, then answer one pair a line."""
    sys.path[:] = json.loads(sys.stdin.readline())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)  # whatever the libraries print must not look like a reply
        import math_verify  # noqa: F401

        print("ready", file=replies, flush=True)
        for line in sys.stdin:
            limit_resources()
            print(json.dumps(equal(*json.loads(line))), file=replies, flush=True)


def limit_resources() -> None:
    """Give the next pair its share of memory and of processor time, where the system can hold a process to it."""
    try:
        import resource
    except ImportError:  # Windows, where the parent's clock is the only limit
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    limits = {"RLIMIT_CPU": used + CPU_SECONDS, "RLIMIT_AS": MEMORY_BYTES, "RLIMIT_CORE": 0}
    for name, soft in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def equal(predicted: str, gold: str) -> bool:
    """Whether two LaTeX expressions are equal; what cannot be read, or compared, is not."""
    from math_verify import verify

    expected, answer = parsed(gold), parsed(predicted)
    if not expected or not answer:
        return False
    try:
        stated, wanted = relations(answer[0]), relations(expected[0])
        if stated and wanted:
            return same_relations(stated, wanted) or same_relations(stated[::-1], wanted)
        if contradict(expected[0], answer[0]):
            return False
        return bool(verify(expected, answer, allow_set_relation_comp=True, timeout_seconds=None))
    except Exception:
        return False


def parsed(latex: str) -> list[Any]:
    """What math-verify reads in LaTeX, an empty list where it reads nothing."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # Its removal of units takes "2s" for 2.
    rules = {"basic_latex": True, "units": False, "malformed_operators": True, "nits": True}
    normal = NormalizationConfig(**rules, boxed="none", equations=False)
    reading = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normal)
    # Fractions are exact, and without the space it reads the gamma function of what follows.
    latex = DECIMAL.sub(lambda d: rf"(\frac{{{d[1]}{d[2]}}}{{{10 ** len(d[2])}}})", latex)
    latex = latex.replace(r"\gamma-", r"\gamma -")
    found: list[Any] = parse(f"${latex}$", [reading], fallback_mode="no_fallback", parsing_timeout=None)
    return found


def relations(expression: Any) -> list[Any]:
    """The relations of a chain such as 1 < x < 2; an empty list of anything else."""
    from sympy.core.relational import Relational

    links = [expression] if isinstance(expression, Relational) else getattr(expression, "_unsorted_args", ())
    return list(links) if all(isinstance(link, Relational) for link in links) else []


def same_relations(predicted: list[Any], gold: list[Any]) -> bool:
    """Whether two chains say the same, link by link; sides may be exchanged, and scaled by a constant.

    The library solves both, and takes relations that have no solution it can find for equal ones.
    """
    flipped = {">": "<", ">=": "<="}
    for a, b in zip(predicted, gold, strict=False):
        ratio = constant_ratio(a.lhs - a.rhs, b.lhs - b.rhs)
        if ratio is None or flipped.get(a.rel_op, a.rel_op) != flipped.get(b.rel_op, b.rel_op):
            return False
        same_side = (a.rel_op in flipped) == (b.rel_op in flipped)
        if a.rel_op not in {"==", "!="} and (ratio > 0) != same_side:
            return False
    return len(predicted) == len(gold)


def constant_ratio(a: Any, b: Any) -> Any:
    """The real number, not 0, that an expression is of another at all points tried; None if there is none."""
    if not (a.free_symbols | b.free_symbols):
        return None
    ratios = [x / y for x, y in (values(a, b, turn) for turn in range(3))]
    if not all(ratio.is_number and ratio.is_finite and ratio.is_real and ratio != 0 for ratio in ratios):
        return None
    return ratios[0] if all(close(ratios[0], ratio) for ratio in ratios[1:]) else None


def contradict(gold: Any, predicted: Any) -> bool:
    """Whether two expressions have different values at some point, or none.

    The library compares to so many decimals, and takes 2^{-98} for 2^{-99}; and it is a hundred times slower to find
    that two expressions differ.
    """
    from sympy import Add, Expr, Mul, Pow, Rational, nan, preorder_traversal, zoo

    if not isinstance(gold, Expr) or not isinstance(predicted, Expr):
        return False
    a, b = values(gold, predicted, 0)
    if a.has(nan, zoo) or b.has(nan, zoo):
        return True
    if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
        return False
    if not close(a, b):
        return True
    parts = [node for side in (gold, predicted) for node in preorder_traversal(side)]
    rational = all(isinstance(part, (Add, Mul, Pow, Rational)) for part in parts)
    if not 1 < abs(a) * MAX_EXACT < MAX_EXACT**2 or not rational:
        return False
    exact = [side.doit() for side in (gold, predicted)]
    return all(side.is_Rational for side in exact) and bool(exact[0] != exact[1])


def values(a: Any, b: Any, turn: int) -> list[Any]:
    """Evaluate two expressions at a point, the same for symbols of one name, whatever is assumed of them."""
    from sympy import Rational, prime

    names = sorted({symbol.name for side in (a, b) for symbol in side.free_symbols})
    point = {name: Rational(prime(k + 4 + 2 * turn), prime(k + 2 + turn)) for k, name in enumerate(names)}
    return [side.subs({s: point[s.name] for s in side.free_symbols}).evalf(DIGITS) for side in (a, b)]


def close(x: Any, y: Any) -> bool:
    """Whether two values agree to nearly all digits, or both are 0."""
    from sympy import Float

    # Where the value is 0, evaluation leaves a residue without a significant digit.
    sizes = [abs(value) for value in (x, y) if getattr(abs(value), "_prec", 0) != 1]
    return not any(sizes) or bool(abs(x - y) <= max(sizes) * Float("1e-40"))


if __name__ == "__main__":
    answer_pairs()

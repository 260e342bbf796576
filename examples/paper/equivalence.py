"""Comparisons of LaTeX expressions by math-verify, in a child process that runs this file.

math-verify limits its time with signals. Only the main thread may set signal handlers, but metrics run in worker
threads. Some expressions also keep sympy busy forever, in code that no thread can interrupt. So the operating system
kills the child if a pair of expressions takes too much CPU time. The parent kills the child if a pair takes too much
wall-clock time.
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

START_SECONDS = 120.0  # wall-clock limit for the start of the child
PAIR_SECONDS = 60.0  # wall-clock limit for a pair, enforced by the parent
CPU_SECONDS = 3  # CPU limit for a pair, independent of the machine's load
MEMORY_BYTES = 2 * 2**30
DECIMAL = re.compile(r"(\d+)\.(\d+)")


class Checker:
    """A child process that compares expressions, one pair at a time. Several threads may share it.

    If a pair takes more than `max_seconds` of wall-clock time, the child is killed. The next pair
    starts a new child.
    """

    def __init__(self, *, max_seconds: float = PAIR_SECONDS) -> None:
        self.max_seconds = max_seconds
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def equal(self, predicted: str, gold: str) -> bool:
        """Return whether two LaTeX expressions are equal.

        Return False if an expression cannot be parsed, or if the comparison takes too long.
        """
        require_library()
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._start()
            return self._ask([predicted, gold], seconds=self.max_seconds) == "true\n"

    def close(self) -> None:
        """Kill the child. The next comparison starts a new child."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._end()
        self._child = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            # Fix the iteration order of sets, because simplifications can depend on it.
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C must interrupt only the parent.
        )
        if not self._ask(sys.path, seconds=START_SECONDS):
            raise RuntimeError(
                "the child process that compares answers exited while starting. Run the command again."
            )

    def _ask(self, message: list[str], *, seconds: float) -> str:
        """Return the reply of the child to a message, or an empty string if the child exits first."""
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        reply = ""
        alarm = threading.Timer(seconds, child.kill)
        alarm.start()
        try:
            child.stdin.write(json.dumps(message) + "\n")
            child.stdin.flush()
            reply = child.stdout.readline()
        except OSError:
            pass  # The child exited before it read the message.
        finally:
            alarm.cancel()
            alarm.join()  # A late alarm must not kill the child of the next pair.
            # After an interrupt, a late reply must not be mistaken for the reply to the next pair.
            if not reply or child.poll() is not None:
                self._end()
        return reply

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()  # Wait for the exit, and close the pipes.
            self._child = None


_CHECKER = Checker()
atexit.register(_CHECKER.close)


@lru_cache(maxsize=100_000)
def equivalent(predicted: str, gold: str) -> bool:
    """Return whether two expressions are equal. Results are cached, and all callers share one `Checker`."""
    return _CHECKER.equal(predicted, gold)


@lru_cache(maxsize=1)
def require_library() -> None:
    """Raise an ImportError with the install command if math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError("math-verify is needed to compare LaTeX. Run pip install 'plr-dspy[examples]'.")


def answer_pairs() -> None:
    """Run the child.

    Read `sys.path` from the first line of stdin, and then a pair of expressions from each line.
    """
    sys.path[:] = json.loads(sys.stdin.readline())
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)  # The libraries' output must not be mistaken for a reply.
        import math_verify  # noqa: F401

        print("ready", file=replies, flush=True)
        for line in sys.stdin:
            limit_resources()
            print(json.dumps(equal(*json.loads(line))), file=replies, flush=True)


def limit_resources() -> None:
    """Limit the memory and CPU time of the next pair."""
    try:
        import resource
    except ImportError:  # On Windows, only the parent limits the child's time.
        return
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(usage.ru_utime + usage.ru_stime) + 1 + CPU_SECONDS
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(kind, (limit, hard))


def equal(predicted: str, gold: str) -> bool:
    """Return whether two LaTeX expressions are equal. Return False if parsing or comparing fails."""
    from math_verify import verify
    from sympy import Eq, Expr

    golds = parse_latex(gold)
    answers = parse_latex(predicted)
    if not golds or not answers:
        return False
    try:
        ours = plain_symbols(answers[0])
        theirs = plain_symbols(golds[0])
        # math-verify wrongly accepts 2^{-98} for 2^{-99}, and equations that it cannot solve.
        if isinstance(ours, Eq) and isinstance(theirs, Eq):
            return same_equation(ours, theirs)
        if isinstance(ours, Expr) and isinstance(theirs, Expr):
            verdict = ours.equals(theirs)
            if verdict is not None:
                return bool(verdict)
        return bool(verify(golds, answers, allow_set_relation_comp=True, timeout_seconds=None))
    except Exception:
        return False


def parse_latex(latex: str) -> list[Any]:
    """Return the expressions that math-verify parses from LaTeX, if any."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # Do not let math-verify remove units, because it would also reduce "2s" to 2.
    rules = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )
    config = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=rules)
    # Replace decimals with fractions, because fractions are exact.
    latex = DECIMAL.sub(lambda match: rf"(\frac{{{match[1]}{match[2]}}}{{{10 ** len(match[2])}}})", latex)
    latex = latex.replace(r"\gamma-", r"\gamma -")  # "\gamma-" would be parsed as the gamma function.
    return list(parse(f"${latex}$", [config], fallback_mode="no_fallback", parsing_timeout=None))


def plain_symbols(expression: Any) -> Any:
    """Return the expression without assumptions about its symbols.

    Without assumptions, symbols with the same name are equal.
    """
    from sympy import Basic, Symbol

    if not isinstance(expression, Basic):
        return expression
    return expression.subs({symbol: Symbol(symbol.name) for symbol in expression.free_symbols})


def same_equation(a: Any, b: Any) -> bool:
    """Return whether two equations are the same up to a constant factor."""
    from sympy import simplify

    ratio = simplify((a.lhs - a.rhs) / (b.lhs - b.rhs))
    return bool(ratio.is_number and ratio.is_finite and ratio != 0)


if __name__ == "__main__":
    answer_pairs()

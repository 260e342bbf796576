"""The overhead of compiling, and the speed of calls.

python benchmarks/speed.py                                # without a model: 4 minutes
python benchmarks/speed.py --parts prefixes               # on the local model
python benchmarks/speed.py --parts searches --weights MODEL.gguf

cells      time and memory per call, over 100,000 calls
rounds     CPU time of a round (`ask()` and `tell()`) at the end of a compile
threads    time compared with a loop over `dspy.Evaluate`, if one call in 20 takes 1 s and the others take 50 ms
pools      time to find the `--demos` nearest demos of an input by comparing words
prefixes   calls per second, ordering by ordering and shuffled: 6 orders of `--demos` demos on 25 reviews
searches   prompt tokens not in llama.cpp's cache, and seconds, for 300 calls of DSPy's random search on 40 reviews
           and for 300 calls of PLFewShot; without --weights, only tokens are counted, and answers are random
"""

import argparse
import hashlib
import logging
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from statistics import median
from typing import ParamSpec, TypeVar
from unittest import mock

import dspy
import litellm
import numpy as np
import replay
from command import options, print_table
from dspy import lm15
from landscapes import SyntheticLandscape
from replay import label_response, metric

from paper.held_out import HeldOut
from plr_dspy import CrossEntropySearch, OrderingSpace, PlainTextAdapter, PLFewShot
from plr_dspy.data import load_reviews
from plr_dspy.local import LocalServer
from plr_dspy.programs.calls import MetricWork, ProgramEvaluator
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.slots import ProgramSlots
from plr_dspy.retrieval.nearest import NearestDemos, Pool
from plr_dspy.search.prefixes import shared_length
from plr_dspy.search.thompson import ThompsonSearch

NUM_THREADS = 16
NUM_REVIEWS = 25
LABELS = ["negative", "positive"]
TASK = "review -> sentiment: Literal['negative', 'positive']"
NUM_CALLS = 300
NUM_SCORED = 40  # reviews on which the random search scores each set of demos
# With this number of sets of demos, the random search makes about 300 calls, including those that bootstrap demos.
NUM_SETS = 4

P = ParamSpec("P")
T = TypeVar("T")


def questions(name: str, number: int) -> list[dspy.Example]:
    """Return examples. All have the same label, because the answers do not matter."""
    return [dspy.Example(question=f"{name} {i}", label="a").with_inputs("question") for i in range(number)]


class ConstantProgram(dspy.Module):
    """A program that answers immediately, or after a delay that depends on the question and the demos."""

    def __init__(self, *, sleeps: bool) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> label")
        self.answer.demos = questions("demo", 8)
        self.sleeps = sleeps

    def seconds(self, question: str) -> float:
        text = question + "|".join(demo.question for demo in self.answer.demos)
        digest = int(hashlib.sha256(text.encode()).hexdigest(), 16)
        return 1.0 if digest % 20 == 0 else 0.05

    def forward(self, question: str) -> dspy.Prediction:
        if self.sleeps:
            time.sleep(self.seconds(question))
        return dspy.Prediction(label="a")


def memory() -> int:
    """Return the peak memory of this process, in KB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def cells(_: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Score 100 orders on 1,000 examples, with a log on disk."""
    program = ConstantProgram(sleeps=False)
    examples = questions("question", 1_000)
    orders = OrderingSpace.of_sizes(8).draw(101, np.random.default_rng(0))
    HeldOut(program, metric=metric, examples=examples, num_threads=8).rows(orders[:1])
    memory_before = memory()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        scorer = HeldOut(program, metric=metric, examples=examples, num_threads=8, folder=Path(folder))
        scorer.rows(orders[1:])
    seconds = time.perf_counter() - began
    yield {"ms a cell": f"{seconds / 100:.2f}", "KB a cell": f"{(memory() - memory_before) / 100_000:.1f}"}


def timed(method: Callable[P, T], milliseconds: list[float]) -> Callable[P, T]:
    """Return the method, wrapped to append the CPU time of each call to `milliseconds`."""

    def timing(*args: P.args, **options: P.kwargs) -> T:
        began = time.process_time()
        result = method(*args, **options)
        milliseconds.append(1_000 * (time.process_time() - began))
        return result

    return timing


def rounds(_: argparse.Namespace) -> Iterator[dict[str, str]]:
    searches = [
        ("by scores", "light", ThompsonSearch),
        ("by log-probabilities", "logprobs", ThompsonSearch),
        ("the paper's", "paper", CrossEntropySearch),
    ]
    for num_demos, num_calls in ((8, 1_000), (8, 10_000), (16, 10_000), (32, 10_000)):
        landscape = SyntheticLandscape("mixed", num_demos, 0, num_examples=200)
        row = {"demos": str(num_demos), "calls": f"{num_calls:,}"}
        for name, method, kind in searches:
            milliseconds: list[float] = []
            ask = timed(kind.ask, milliseconds)
            tell = timed(kind.tell, milliseconds)
            with mock.patch.multiple(kind, ask=ask, tell=tell):
                replay.compile_with(replay.Pool(landscape, 160), method, num_calls, seed=0)
            row[f"{name}, ms"] = f"{sum(milliseconds[-20:]) / 10:.1f}"
        yield row


def threads(_: argparse.Namespace) -> Iterator[dict[str, str]]:
    logging.getLogger("dspy.evaluate").setLevel(logging.WARNING)
    student = ConstantProgram(sleeps=True)
    devset = questions("question", 100)
    slots = ProgramSlots(student)
    factory = ProgramFactory(student)
    evaluate = dspy.Evaluate(devset=devset, metric=metric, num_threads=NUM_THREADS, display_progress=False)
    for seed in range(3):
        orders = slots.space.draw(15, np.random.default_rng(seed))
        programs = [factory.build(slots.demos(order)) for order in orders]
        latency = 0.0
        for program in programs:
            latency += sum(program.seconds(example.question) for example in devset)
        bound = latency / NUM_THREADS
        began = time.perf_counter()
        HeldOut(student, metric=metric, examples=devset, num_threads=NUM_THREADS).rows(orders)
        ours = time.perf_counter() - began
        began = time.perf_counter()
        for program in programs:
            evaluate(program)
        plain = time.perf_counter() - began
        yield {
            "latency / threads, s": f"{bound:.2f}",
            "plr_dspy": f"{ours:.2f}",
            "Evaluate": f"{plain:.2f}",
            "Evaluate / plr_dspy": f"{plain / ours:.2f}",
            "plr_dspy / latency": f"{ours / bound:.2f}",
        }


def pools(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Find demos for inputs of 20 words each, drawn from a skewed distribution over 5,000 words."""
    rng = np.random.default_rng(0)
    for size in (100, 1_000, 10_000):
        words = (5_000 * rng.random((size + 200, 20)) ** 3).astype(int)
        texts = []
        for row in words:
            texts.append(" ".join(f"word{number}" for number in row))
        demos = [dspy.Example(text=text, label=f"label {i % 5}") for i, text in enumerate(texts[:size])]
        pool = Pool(dspy.Predict("text -> label"), demos, ["" for _ in demos])
        milliseconds: list[float] = []
        shown = timed(pool.shown, milliseconds)
        for text in texts[size:]:
            shown({"text": text}, NearestDemos(args.demos))
        yield {"demos": f"{size:,}", "an input, ms (median)": f"{median(milliseconds):.1f}"}


def prefixes(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    reviews = load_reviews("train")
    student = dspy.Predict(TASK)
    student.demos = reviews[: args.demos]
    examples = reviews[args.demos : args.demos + NUM_REVIEWS]
    slots = ProgramSlots(student)
    names = [str(number) for number in range(NUM_REVIEWS)]
    work = MetricWork(is_right, examples)
    with (
        LocalServer(args.weights) as server,
        dspy.context(lm=server.lm(max_tokens=4), adapter=PlainTextAdapter()),
    ):
        for seed, name in enumerate(("ordering by ordering", "shuffled")):
            calls = []
            for order in slots.space.draw(6, np.random.default_rng(seed)):
                fingerprint = slots.fingerprint(order)
                calls += [((fingerprint, number), order) for number in range(NUM_REVIEWS)]
            if name == "shuffled":
                random.Random(0).shuffle(calls)
            evaluator = ProgramEvaluator(slots, work, names=names, num_threads=2)
            began = time.perf_counter()
            evaluator.pay(dict(calls))
            seconds = time.perf_counter() - began
            yield {"calls": name, "a second": f"{len(calls) / seconds:.1f}"}


def is_right(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    """Return whether the sentiment is correct."""
    return bool(example.sentiment == prediction.sentiment)


def random_search(reviews: list[dspy.Example], num_demos: int) -> None:
    """Run DSPy's random search. It scores all sets of demos on the same reviews."""
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=is_right,
        max_bootstrapped_demos=num_demos // 2,
        max_labeled_demos=num_demos,
        num_candidate_programs=NUM_SETS,
        num_threads=1,
        max_errors=NUM_CALLS,
    )
    with redirect_stdout(sys.stderr):  # DSPy prints each score.
        optimizer.compile(dspy.Predict(TASK), trainset=reviews[NUM_SCORED:], valset=reviews[:NUM_SCORED])


def few_shot(reviews: list[dspy.Example], num_demos: int) -> None:
    """Run PLFewShot."""
    options = {
        "max_demos": num_demos,
        "max_metric_calls": NUM_CALLS,
        "num_threads": 1,
        "display_progress": False,
    }
    PLFewShot(is_right, **options).compile(dspy.Predict(TASK), trainset=reviews)


class CountingEngine:
    """An LM engine that counts prompt tokens like llama.cpp with one slot, and gives pseudo-random answers.

    Replies include the log-probabilities of the labels. Each label is one token.
    """

    def __init__(self) -> None:
        self._last: list[int] = []  # tokens of the last prompt

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Return the answer to a request, with token counts."""
        texts = [request.system, *(message.text for message in request.messages)]
        prompt = "\n".join(filter(None, texts))
        tokens = litellm.encode(model="gpt-4o", text=prompt)
        num_cached = shared_length(self._last, tokens)
        self._last = tokens
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 10, "total_tokens": len(tokens) + 10}
        usage["prompt_tokens_details"] = {"cached_tokens": num_cached}
        return label_response("sentiment", LABELS, self._log_probabilities(texts), usage, request)

    def _log_probabilities(self, texts: list[str]) -> np.ndarray:
        """Return values that depend on the review and on the last two demos."""
        odds = 0.0
        for text in texts[-5:]:
            digest = hashlib.sha256(text.encode()).digest()
            odds += digest[0] / 128 - 1.0
        return -np.logaddexp(0.0, [odds, -odds])


@contextmanager
def served(weights: str | None) -> Iterator[Callable[[], dspy.LM]]:
    """Yield a function that returns an LM on llama.cpp or, without weights, an LM that only counts tokens."""
    if weights is None:
        yield lambda: dspy.LM("openai/counting", engine=CountingEngine(), cache=False)
        return
    with LocalServer(weights) as server:
        yield lambda: server.lm("chat", max_tokens=24)


def searches(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Compare the searches on the same server, in the prompts of `dspy.ChatAdapter`."""
    reviews = load_reviews("train")
    first: tuple[float, float] | None = None
    with served(args.weights) as make_lm:
        for name, search in (("random search", random_search), ("PLFewShot", few_shot)):
            lm = make_lm()
            began = time.perf_counter()
            with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
                search(reviews, args.demos)
            num_calls = len(lm.history)
            seconds = (time.perf_counter() - began) / num_calls
            sent = sum(call["usage"]["prompt_tokens"] for call in lm.history)
            cached = sum(call["usage"]["prompt_tokens_details"]["cached_tokens"] for call in lm.history)
            new_tokens = (sent - cached) / num_calls
            first = first or (new_tokens, seconds)
            yield {
                "search": name,
                "calls": str(num_calls),
                "prompt tokens a call": f"{sent / num_calls:.0f}",
                "uncached": f"{new_tokens:.0f}",
                "times as many": f"{new_tokens / first[0]:.2f}",
                "times as long": f"{seconds / first[1]:.2f}",
            }


PARTS = {part.__name__: part for part in (cells, rounds, threads, pools, prefixes, searches)}


def main() -> None:
    names = list(PARTS)
    args = options(__doc__, among={"parts": names}, parts=names[:4], demos=8, weights=str)
    for name in args.parts:
        print(f"\n{name}\n", flush=True)
        print_table(PARTS[name](args))


if __name__ == "__main__":
    main()

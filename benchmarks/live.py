"""Live comparisons: held-out scores of several ways to spend program calls, over tasks and draws of examples.

python benchmarks/live.py                                        # the bundled reviews, the local model
python benchmarks/live.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 8 --cache ...

Each seed draws `--pool` labelled and `--test` held-out examples of each task, the same for all sides:

original          `--demos` of the labelled ones, as `LabeledFewShot` draws them
no demos          the program as it is
PLReorder         the original in another order
scores            PLReorder that learns from scores alone
calibrate         PLReorder with calibrate=True
TopKOrder, LocalE, GlobalE, PDO few-shot, PDO unlabelled, DEmO
                  the original in the order of these methods
calibrated        BatchCalibration of the original
TopK calibrated   the best of 10 random orders, each calibrated
random search     BootstrapFewShotWithRandomSearch with 16 candidates
half of it        the same with the number that takes about half of the calls
half of it, PLReorder
                  its demos in a better order
PLFewShot, PLFewShot calibrated, PLFewShot auto, PLFewShot auto calibrated
                  calibrated with calibrate=True, auto with demos="auto"
..., then calibrated
                  BatchCalibration of the choice has 64 of the calls
nearest last      `--demos` demos found for each input
nearest first     the nearest first
frequent labels   prefers those of most neighbours, as max_metric_calls=0 does
random order      those of nearest last in a random order
vote              the most frequent label of the nearest
KNNFewShot        DSPy's, which bootstraps the nearest

With `--share` this share of the examples has one label, which the seed decides, and the F1 of this label counts.
"F1" before PLReorder, scores, calibrate or calibrated chooses by it.

A side has the program calls after its name, as in "PLFewShot@300". Without a number it has those of the random
search if that is one of the sides, and else its own default.

Tables have the difference of each side to each of `--against` (the first side), with intervals over draws and
over all held-out examples. Beside it stands what reports expected: how many held-out scores, and gains over the
student if it is a side, lay in their intervals, and how many "better" there were, and were so. With --cache DSPy
keeps all calls: what was stopped goes on, and the seconds say nothing.
"""

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import dspy
import numpy as np
from command import SERVED, options, print_table, with_interval
from dspy.utils.callback import BaseCallback
from sklearn.feature_extraction.text import TfidfVectorizer

from paper.held_out import HeldOut
from paper.model import MakeLM, ServedModel
from paper.tasks import CLASSIFICATION
from plr_dspy import F1, BatchCalibration, CalibratedProgram, PLFewShot, PLReorder, evaluate_programs
from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, TopKOrder
from plr_dspy.labels.batch_calibration import read_replies
from plr_dspy.labels.calibrated_program import calibrated_output
from plr_dspy.programs.splits import source_of
from plr_dspy.report.schema import Comparison
from plr_dspy.report.text import MIN_WIN_PROBABILITY
from plr_dspy.retrieval.nearest import NearestDemos, Pool
from plr_dspy.retrieval.predict import Retrieval, retrieve_in
from plr_dspy.statistics.calibration import calibrated
from plr_dspy.statistics.comparisons import paired_interval
from quickstart import BUNDLED, load_data, mean

ORIGINAL = "original"
EMPTY = "no demos"
SEARCH = "random search"
HALF = "half of it"
PUBLISHED = ["LocalE", "GlobalE", "PDO few-shot", "DEmO"]
USUAL = [ORIGINAL, "TopKOrder@1000", *PUBLISHED, "PDO unlabelled@1000", "PLReorder@1000"]
NUM_ORDERS = 10  # that "TopK calibrated" tries
CALIBRATION_CALLS = 64


@dataclass(frozen=True)
class Made:
    """A program, the calls that it took, and what its report expects."""

    program: dspy.Module
    calls: int = 0
    comparison: Comparison | None = None


@dataclass(frozen=True)
class Result:
    """A side with the seconds that it took, and its scores by held-out example, or the F1 of them all."""

    made: Made
    seconds: float
    scores: list[float]


def opened(args: argparse.Namespace) -> AbstractContextManager[MakeLM]:
    """Return what makes language models of the model that the options name."""
    return ServedModel(args.model, tuple(args.api_base), cache=args.cache).open(format="plain")


class Draw:
    """One draw of examples of a task, and what every side makes of it.

    Attributes:
        rare: The label whose F1 counts, if any.
    """

    def __init__(self, name: str, seed: int, args: argparse.Namespace, make_lm: MakeLM) -> None:
        data = load_data(name, args.data_dir)
        self.rng = random.Random(seed)
        self.task = data.task
        self.seed = seed
        self.args = args
        self._make_lm = make_lm
        self.rare: str | None = None
        if args.share:
            counts = Counter(example[self.task.output_field] for example in data.test)
            frequent = [label for label, count in counts.items() if count >= args.share * args.test]
            self.rare = self.rng.choice(sorted(frequent))
        self.labelled = self._drawn(data.train, args.pool)
        self.test = self._drawn(data.test, args.test)
        self.metric = data.task.metric()
        self.common = {"num_threads": args.threads, "seed": seed, "display_progress": False}
        self.output = calibrated_output(self.program(EMPTY))
        self._results: dict[str, Result] = {}

    def _drawn(self, examples: Sequence[dspy.Example], number: int) -> list[dspy.Example]:
        """Return random examples, with the share of a rare label."""
        if self.rare is None:
            return self.rng.sample(examples, min(number, len(examples)))
        field = self.task.output_field
        num_rare = round(self.args.share * number)
        of_rare = [example for example in examples if example[field] == self.rare]
        of_others = [example for example in examples if example[field] != self.rare]
        drawn = self.rng.sample(of_rare, num_rare)
        drawn += self.rng.sample(of_others, number - num_rare)
        return self.rng.sample(drawn, number)

    def answering(self) -> AbstractContextManager[None]:
        """Have the model answer with prompts of this task."""
        lm = self._make_lm(self.task.max_tokens("plain"))
        return dspy.context(lm=lm, adapter=self.task.adapter("plain"))

    def result(self, side: str) -> Result:
        """Return what a side comes to; made once."""
        if side not in self._results:
            name, _, calls = side.partition("@")
            budget = int(calls) if calls else None
            if budget is None and SEARCH in self.args.sides and name not in OWN_CALLS:
                budget = self.result(SEARCH).made.calls
            began = time.perf_counter()
            made = SIDES[name](self, budget)
            seconds = time.perf_counter() - began
            scores = self._scores(made.program)
            self._results[side] = Result(made, seconds, scores)
            text = f"{side} {mean(scores):.3f}, {made.calls:,} calls, {seconds:.0f} s"
            print(f"{self.task.name}, seed {self.seed}: {text}", flush=True)
        return self._results[side]

    def _scores(self, program: dspy.Module) -> list[float]:
        num_threads = self.args.threads
        if self.rare is None:
            scorer = HeldOut(program, metric=self.metric, examples=self.test, num_threads=num_threads)
            return scorer.scores()
        evaluation = evaluate_programs(
            {"": program}, F1(self.rare), self.test, num_threads=num_threads, display_progress=False
        )
        return [evaluation.programs[""].score]

    def program(self, side: str) -> dspy.Module:
        """Return the program without demos, with labelled ones, or that of a side."""
        if side not in (ORIGINAL, EMPTY):
            return self.result(side).made.program
        student = dspy.Predict(self.task.signature)
        if side == EMPTY:
            return student
        optimizer = dspy.LabeledFewShot(k=self.args.demos)
        # With a rare label, the examples are shuffled already.
        return optimizer.compile(student, trainset=self.labelled, sample=self.rare is None)

    @cached_property
    def pool(self) -> Pool:
        """The labelled examples as demos that are found for an input."""
        sources = [source_of(example.inputs()) for example in self.labelled]
        return Pool(self.program(EMPTY), self.labelled, sources)


class Chosen(dspy.Predict):
    """The program that shows to each of some examples the labelled ones of these numbers."""

    def __init__(self, draw: Draw, examples: Sequence[dspy.Example], choices: Sequence[Sequence[int]]) -> None:
        super().__init__(draw.task.signature)
        self.by_inputs = {}
        for example, numbers in zip(examples, choices, strict=True):
            self.by_inputs[source_of(example.inputs())] = [draw.labelled[number] for number in numbers]

    def forward(self, **inputs: str) -> dspy.Prediction:
        return super().forward(demos=self.by_inputs[source_of(inputs)], **inputs)


def optimized(
    draw: Draw, calls: int | None, *, kind: Any, base: str = ORIGINAL, by_f1: bool = False, **settings: Any
) -> Made:
    """Return what an optimizer of this package makes of another side, with the calls that are left."""
    if kind is PLFewShot:
        base = EMPTY
        settings["max_demos"] = draw.args.demos
    spent = 0
    if base not in (ORIGINAL, EMPTY):
        spent = draw.result(base).made.calls
    if calls is not None:
        settings["max_metric_calls"] = calls - spent
    optimizer = kind(F1(draw.rare) if by_f1 else draw.metric, **draw.common, **settings)
    program = optimizer.compile(draw.program(base), trainset=draw.labelled)
    report = optimizer.report
    return Made(program, spent + report.program_calls["total"], report.comparison)


class Calls(BaseCallback):
    """Counts LM calls, those that DSPy's cache answers among them: every side would have to pay for them."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def on_lm_start(self, call_id: str, instance: object, inputs: dict[str, object]) -> None:
        self.ids.append(call_id)


def batch_calibrated(draw: Draw, calls: int | None, *, base: str = ORIGINAL, by_f1: bool = False) -> Made:
    """Return the original with calibrated answers, or what another side makes of all but 64 of the calls."""
    spent = 0
    num_inputs = calls or CALIBRATION_CALLS
    if base != ORIGINAL:
        base = f"{base}@{(calls or 364) - CALIBRATION_CALLS}"
        num_inputs = CALIBRATION_CALLS
        spent = draw.result(base).made.calls
    counted = Calls()
    optimizer = BatchCalibration(num_inputs=num_inputs, metric=F1(draw.rare) if by_f1 else None, **draw.common)
    with dspy.context(callbacks=[counted]):
        program = optimizer.compile(draw.program(base), trainset=draw.labelled)
    return Made(program, spent + len(counted.ids))


def top_k_calibrated(draw: Draw, calls: int | None) -> Made:
    """Return the best of random orders by calibrated answers, each calibrated on the inputs that score it."""
    rng = random.Random(draw.seed)
    program = draw.program(ORIGINAL)
    demos = list(program.predictors()[0].demos)
    shown = [dict(demo) for demo in demos]
    pool = [example for example in draw.labelled if example.toDict() not in shown]
    examples = rng.sample(pool, min(len(pool), (calls or 250) // NUM_ORDERS))
    right_labels = draw.output.numbers(examples)
    candidates = []
    for number in range(NUM_ORDERS):
        ordered = program.deepcopy()
        ordered.predictors()[0].demos = rng.sample(demos, len(demos)) if number else demos
        replies = read_replies(ordered, examples, draw.output, num_threads=draw.args.threads, max_errors=1)
        calibration = replies.calibrated_to()
        moved = calibrated(replies.log_probabilities, calibration.offsets, unseen=replies.unseen)
        num_right = (moved.argmax(axis=1) == right_labels[replies.inputs]).sum()
        candidates.append((num_right, CalibratedProgram(ordered, calibration)))
    _, best = max(candidates, key=itemgetter(0))
    return Made(best, NUM_ORDERS * len(examples))


def nearest(draw: Draw, _: int | None, **variation: Any) -> Made:
    """Return the program that shows each input its nearest demos."""
    retrieval = Retrieval(draw.pool, NearestDemos(draw.args.demos, **variation))
    return Made(retrieve_in(draw.program(EMPTY), {"self": retrieval}))


def in_random_order(draw: Draw, _: int | None) -> Made:
    """Return the nearest demos in an order of each input's own."""
    rng = np.random.default_rng(draw.seed)
    choices = []
    for example in draw.test:
        numbers = draw.pool.shown(example.inputs(), NearestDemos(draw.args.demos))
        choices.append(rng.permutation(numbers).tolist())
    return Made(Chosen(draw, draw.test, choices))


def knn_few_shot(draw: Draw, _: int | None) -> Made:
    """Return what DSPy's own way to show the nearest demos makes, by the words that inputs share."""
    words = TfidfVectorizer().fit([example[draw.task.input_field] for example in draw.labelled])
    # A cache would mistake the words of one draw for those of another.
    embedder = dspy.Embedder(lambda texts: words.transform(texts).toarray(), caching=False)
    optimizer = dspy.KNNFewShot(draw.args.demos, draw.labelled, embedder, metric=draw.metric)
    return Made(optimizer.compile(draw.program(EMPTY)))


class Vote(dspy.Module):
    """Answers as most of the nearest examples do, the nearest of these first; it calls no language model."""

    def __init__(self, pool: Pool, number: int) -> None:
        super().__init__()
        self.pool = pool
        self.number = number

    def forward(self, **inputs: str) -> dspy.Prediction:
        return dspy.Prediction(**self.pool.vote(inputs, self.number))


def searched(draw: Draw, _: int | None, *, candidates: int) -> Made:
    """Return DSPy's random search: demos come from one half of the examples and are chosen on the other."""
    middle = len(draw.labelled) // 2
    counted = Calls()
    with redirect_stdout(sys.stderr), dspy.context(callbacks=[counted]):  # It prints every score.
        optimizer = dspy.BootstrapFewShotWithRandomSearch(
            metric=draw.metric,
            max_bootstrapped_demos=draw.args.demos // 2,
            max_labeled_demos=draw.args.demos,
            num_candidate_programs=candidates,
            num_threads=draw.args.threads,
            max_errors=10 * len(draw.labelled),  # Answers that cannot be parsed are wrong ones.
        )
        program = optimizer.compile(draw.program(EMPTY), trainset=draw.labelled[:middle], valset=draw.labelled[middle:])
    return Made(program, len(counted.ids))


def given(draw: Draw, _: int | None, *, side: str) -> Made:
    return Made(draw.program(side))


def vote(draw: Draw, _: int | None) -> Made:
    return Made(Vote(draw.pool, draw.args.demos))


OF_INPUT: dict[str, Callable[[Draw, int | None], Made]] = {
    "nearest last": nearest,
    "nearest first": partial(nearest, nearest_last=False),
    "frequent labels": partial(nearest, prefer="frequent labels"),
    "random order": in_random_order,
    "vote": vote,
    "KNNFewShot": knn_few_shot,
}
REORDERED: dict[str, Callable[..., Made]] = {
    "PLReorder": partial(optimized, kind=PLReorder),
    "scores": partial(optimized, kind=PLReorder, signal="score"),
    "calibrate": partial(optimized, kind=PLReorder, calibrate=True),
    "calibrated": batch_calibrated,
}
SIDES: dict[str, Callable[[Draw, int | None], Made]] = {
    ORIGINAL: partial(given, side=ORIGINAL),
    EMPTY: partial(given, side=EMPTY),
    **REORDERED,
    **{f"F1 {name}": partial(make, by_f1=True) for name, make in REORDERED.items()},
    "TopKOrder": partial(optimized, kind=TopKOrder),
    "LocalE": partial(optimized, kind=LocalE),
    "GlobalE": partial(optimized, kind=GlobalE),
    "DEmO": partial(optimized, kind=DEmO),
    "PDO few-shot": partial(optimized, kind=PDO),
    "PDO unlabelled": partial(optimized, kind=PDO, setting="unlabelled"),
    "TopK calibrated": top_k_calibrated,
    SEARCH: partial(searched, candidates=16),
    # Three more are always scored: no demos, labelled ones, and unshuffled ones.
    HALF: partial(searched, candidates=6),
    f"{HALF}, PLReorder": partial(optimized, kind=PLReorder, base=HALF),
    "PLFewShot": partial(optimized, kind=PLFewShot),
    "PLFewShot calibrated": partial(optimized, kind=PLFewShot, calibrate=True),
    "PLFewShot auto": partial(optimized, kind=PLFewShot, demos="auto"),
    "PLFewShot auto calibrated": partial(optimized, kind=PLFewShot, demos="auto", calibrate=True),
    "PLReorder, then calibrated": partial(batch_calibrated, base="PLReorder"),
    "PLFewShot, then calibrated": partial(batch_calibrated, base="PLFewShot"),
    "PLFewShot auto, then calibrated": partial(batch_calibrated, base="PLFewShot auto"),
    **OF_INPUT,
}
OWN_CALLS = [ORIGINAL, EMPTY, SEARCH, HALF, *PUBLISHED, *OF_INPUT, "calibrated", "F1 calibrated"]
"""Sides whose calls those of the random search do not decide."""

Results = dict[str, Result]


def promised(draws: Sequence[Results], side: str) -> dict[str, str]:
    """Return what reports expect of a side, and how often it came true."""
    student = EMPTY if side.startswith("PLFewShot") else ORIGINAL
    expected = []
    expected_gains = []
    gains = []
    num_inside = 0
    num_gains_inside = 0
    better = []
    for results in draws:
        comparison = results[side].made.comparison
        if comparison is None:
            continue
        score = mean(results[side].scores)
        value, low, high = comparison.expected_chosen
        expected.append(value)
        num_inside += low <= score <= high
        if student not in results:
            continue
        gain = score - mean(results[student].scores)
        low, high = comparison.gain_interval
        expected_gains.append(comparison.expected_gain)
        gains.append(gain)
        num_gains_inside += low <= gain <= high
        if comparison.probability >= MIN_WIN_PROBABILITY:
            better.append(gain > 0)
    row = {"expected": "", "inside": "", "gain expected": "", "gain": ""}
    if expected:
        row["expected"] = f"{mean(expected):.3f}"
        row["inside"] = f"{num_inside} of {len(expected)}"
    if gains:
        row["gain expected"] = f"{mean(expected_gains):+.3f}"
        row["gain"] = f"{mean(gains):+.3f}"
    row["gain inside"] = str(num_gains_inside)
    row["better, and so"] = f"{len(better)}, {sum(better)}"
    return row


def differences(draws: Sequence[Results], side: str, other: str) -> tuple[str, str]:
    """Return the mean difference of two sides with its interval over draws, and that over all examples."""
    if side == other:
        return "", ""
    of_draws = []
    of_examples: list[float] = []
    for results in draws:
        gains = np.subtract(results[side].scores, results[other].scores).tolist()
        of_draws.append(mean(gains))
        of_examples += gains
    low, high = paired_interval(of_examples)
    return with_interval(of_draws), f"[{low:+.3f}, {high:+.3f}]"


def print_sides(title: str, draws: Sequence[Results], against: Sequence[str]) -> None:
    """Print each side, and its gains over others."""
    rows = []
    for side in draws[0]:
        of_side = [results[side] for results in draws]
        row = {
            "": side,
            "score": f"{mean([mean(result.scores) for result in of_side]):.3f}",
            "calls": f"{mean([result.made.calls for result in of_side]):,.0f}",
            "s": f"{mean([result.seconds for result in of_side]):.0f}",
        }
        for other in against:
            over_draws, over_examples = differences(draws, side, other)
            row[f"less {other}, over draws"] = over_draws
            row[f"less {other}, over examples"] = over_examples
        rows.append(row | promised(draws, side))
    print(f"\n{title}, {len(draws)} draw(s)\n")
    print_table(rows)


def main() -> None:
    args = options(
        __doc__,
        among={"tasks": [BUNDLED, *CLASSIFICATION]},
        tasks=[BUNDLED],
        data_dir=Path,
        seeds=[0],
        pool=108,
        test=200,
        share=0.0,
        sides=USUAL,
        against=[str],
        demos=8,
        **SERVED,
    )
    unknown = [side for side in args.sides if side.partition("@")[0] not in SIDES]
    if unknown:
        raise SystemExit(f"--sides must be of {list(SIDES)}, with @ and a number of calls; got {unknown}")
    against = args.against or args.sides[:1]
    missing = set(against) - set(args.sides)
    if missing:
        raise SystemExit(f"--against must be of --sides; got {sorted(missing)}")
    found: dict[str, list[Results]] = {task: [] for task in args.tasks}
    with opened(args) as make_lm:
        for seed in args.seeds:
            draws = {task: Draw(task, seed, args, make_lm) for task in args.tasks}
            for task, draw in draws.items():
                with draw.answering():
                    found[task].append({side: draw.result(side) for side in args.sides})
    for task, results in found.items():
        print_sides(f"{task}, {args.demos} demos", results, against)
    if len(found) > 1:
        together = list(itertools.chain.from_iterable(found.values()))
        print_sides(f"all {len(found)} tasks", together, against)


if __name__ == "__main__":
    main()

"""Live comparisons: held-out scores of several ways to spend program calls, over tasks and draws of examples.

python benchmarks/live.py                                        # all methods, the bundled reviews, the local model
python benchmarks/live.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 8 --cache ...

Each seed draws `--pool` labelled and `--test` held-out examples of each task, the same for all sides. The side
"original" shows `--demos` of the labelled ones, as `LabeledFewShot` draws them; "no demos" shows none. The others:

PLReorder         the original in another order; "scores" learns from scores alone, "calibrate" has calibrate=True
TopKOrder, LocalE, GlobalE, "PDO few-shot", "PDO unlabelled", DEmO     the original in the order of these methods
calibrated        BatchCalibration of the original; "TopK calibrated" is the best of 10 random orders, each calibrated
random search     BootstrapFewShotWithRandomSearch with 16 candidates; "half of it" has the number that takes about half
                  of the calls, "half of it, PLReorder" its demos in a better order
PLFewShot         "PLFewShot calibrated", "PLFewShot auto" and "PLFewShot auto calibrated" have calibrate=True and
                  demos="auto"; with ", then calibrated" BatchCalibration of the choice has 64 of the calls
nearest last      `--demos` demos found for each input; "frequent labels" prefers those of most neighbours, as
                  max_metric_calls=0 does; "nearest first", "random order", "vote" (their most frequent label),
                  "KNNFewShot" (DSPy's, which bootstraps the nearest)

With `--share` so many of the examples have one label, which the seed decides, and the F1 of this label is what counts;
"F1" before PLReorder, scores, calibrate or calibrated chooses by it. A side has the program calls after its name, as
in "PLFewShot@300"; without a number those of the random search where that is one of the sides, and else its own
default. Tables have the difference of each side to each of `--against` (the first side), with intervals over draws and
over all held-out examples, and what reports expected: how many held-out scores, and gains over the student where it is
a side, lay in their intervals, and how many "better" there were, and were so. With --cache DSPy keeps all calls: what
was stopped goes on, and the seconds say nothing.
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
ORDERS = 10  # that "TopK calibrated" tries

Made = tuple[Any, ...]  # a program, the calls that it took, and what a report expects of it, if there is one


@dataclass(frozen=True)
class Result:
    """A program, the calls and the seconds that it took, its scores, by held-out example, or the F1 of them all, and
    what its report expects."""

    program: dspy.Module
    calls: int
    seconds: float
    scores: list[float]
    told: Comparison | None = None


def opened(args: argparse.Namespace) -> AbstractContextManager[MakeLM]:
    """What makes language models of the model that the options name."""
    return ServedModel(args.model, tuple(args.api_base), cache=args.cache).open(format="plain")


class Draw:
    """One draw of examples of a task, and what every side makes of it."""

    rare: str | None = None  # the label whose F1 counts

    def __init__(self, name: str, seed: int, args: argparse.Namespace, make_lm: MakeLM) -> None:
        data = load_data(name, args.data_dir)
        self.rng = random.Random(seed)
        self.task = data.task
        self.seed = seed
        self.args = args
        self._make_lm = make_lm
        if args.share:
            counts = Counter(each[self.task.output_field] for each in data.test)
            frequent = sorted(label for label, count in counts.items() if count >= args.share * args.test)
            self.rare = self.rng.choice(frequent)
        self.labelled = self._drawn(data.train, args.pool)
        self.test = self._drawn(data.test, args.test)
        self.metric = data.task.metric()
        self.common = {"num_threads": args.threads, "seed": seed, "display_progress": False}
        self.output = calibrated_output(self.program(EMPTY))
        self._known: dict[str, Result] = {}

    def _drawn(self, examples: Sequence[dspy.Example], number: int) -> list[dspy.Example]:
        """So many examples at random; where a label is rare, with its share."""
        if self.rare is None:
            return self.rng.sample(examples, min(number, len(examples)))
        field = self.task.output_field
        num_rare = round(self.args.share * number)
        own = self.rng.sample([each for each in examples if each[field] == self.rare], num_rare)
        others = self.rng.sample([each for each in examples if each[field] != self.rare], number - num_rare)
        return self.rng.sample(own + others, number)

    def answering(self) -> Any:
        """Have the model answer with prompts of this task."""
        lm = self._make_lm(self.task.max_tokens("plain"))
        return dspy.context(lm=lm, adapter=self.task.adapter("plain"))

    def result(self, side: str) -> Result:
        """What a side comes to; made once."""
        if side not in self._known:
            how, _, calls = side.partition("@")
            searched = SEARCH in self.args.sides and how not in OWN_CALLS and not calls
            budget = int(calls) if calls else self.result(SEARCH).calls if searched else None
            began = time.perf_counter()
            num_threads = self.args.threads
            program, taken, *told = SIDES[how](self, budget)
            seconds = time.perf_counter() - began
            if self.rare is None:
                scores = HeldOut(program, metric=self.metric, examples=self.test, num_threads=num_threads).scores()
            else:
                silent = {"num_threads": num_threads, "display_progress": False}
                scores = [evaluate_programs({"": program}, F1(self.rare), self.test, **silent).programs[""].score]
            self._known[side] = Result(program, taken, seconds, scores, *told)
            found = f"{side} {mean(scores):.3f}, {taken:,} calls, {seconds:.0f} s"
            print(f"{self.task.name}, seed {self.seed}: {found}", flush=True)
        return self._known[side]

    def program(self, side: str) -> dspy.Module:
        """The program without demos, with labelled ones, or that of a side."""
        if side not in (ORIGINAL, EMPTY):
            return self.result(side).program
        student = dspy.Predict(self.task.signature)
        if side == EMPTY:
            return student
        optimizer = dspy.LabeledFewShot(k=self.args.demos)
        sample = self.rare is None  # else they are shuffled
        return optimizer.compile(student, trainset=self.labelled, sample=sample)

    @cached_property
    def pool(self) -> Pool:
        """The labelled examples as demos that are found for an input."""
        return Pool(self.program(EMPTY), self.labelled, [source_of(each.inputs()) for each in self.labelled])


class Chosen(dspy.Predict):
    """The program that shows to each of some examples the labelled ones of these numbers."""

    def __init__(self, draw: Draw, examples: Sequence[dspy.Example], choices: Sequence[Sequence[int]]) -> None:
        super().__init__(draw.task.signature)
        keys = [source_of(each.inputs()) for each in examples]
        self.by_inputs = dict(zip(keys, ([draw.labelled[i] for i in chosen] for chosen in choices), strict=True))

    def forward(self, **inputs: Any) -> dspy.Prediction:
        return super().forward(demos=self.by_inputs[source_of(inputs)], **inputs)


def optimized(draw: Draw, calls: int | None, *, kind: Any, base=ORIGINAL, by_f1=False, **settings: Any) -> Made:
    """What an optimizer of this package makes of another side, with the calls that are left."""
    if kind is PLFewShot:
        base = EMPTY
        settings["max_demos"] = draw.args.demos
    spent = 0 if base in (ORIGINAL, EMPTY) else draw.result(base).calls
    budget = {} if calls is None else {"max_metric_calls": calls - spent}
    optimizer = kind(F1(draw.rare) if by_f1 else draw.metric, **draw.common, **budget, **settings)
    made = optimizer.compile(draw.program(base), trainset=draw.labelled)
    return made, spent + optimizer.report.program_calls["total"], optimizer.report.comparison


class Calls(BaseCallback):
    """Notes LM calls, those that DSPy's cache answers among them: every side would have to pay for them."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.made.append(call_id)


def batch_calibrated(draw: Draw, calls: int | None, *, base=ORIGINAL, by_f1=False) -> Made:
    """The original with its answers calibrated, or what another side makes of all but 64 of the calls."""
    spent = 0
    counted = Calls()
    if base != ORIGINAL:
        base = f"{base}@{(calls or 364) - 64}"
        calls = 64
        spent = draw.result(base).calls
    optimizer = BatchCalibration(num_inputs=calls or 64, metric=F1(draw.rare) if by_f1 else None, **draw.common)
    with dspy.context(callbacks=[counted]):
        made = optimizer.compile(draw.program(base), trainset=draw.labelled)
    return made, spent + len(counted.made)


def top_k_calibrated(draw: Draw, calls: int | None) -> Made:
    """The best of random orders by calibrated answers, each calibrated on the inputs that it is scored on."""
    rng = random.Random(draw.seed)
    program = draw.program(ORIGINAL)
    demos = program.predictors()[0].demos
    pool = [each for each in draw.labelled if not any(each.toDict() == dict(demo) for demo in demos)]
    examples = rng.sample(pool, min(len(pool), (calls or 250) // ORDERS))
    right = draw.output.numbers(examples)
    found = []
    for number in range(ORDERS):
        ordered = program.deepcopy()
        ordered.predictors()[0].demos = rng.sample(list(demos), len(demos)) if number else list(demos)
        told = read_replies(ordered, examples, draw.output, num_threads=draw.args.threads, max_errors=1)
        kept = told.calibrated_to()
        moved = calibrated(told.log_probabilities, kept.offsets, unseen=told.unseen)
        found.append(((moved.argmax(axis=1) == right[told.inputs]).sum(), CalibratedProgram(ordered, kept)))
    return max(found, key=itemgetter(0))[1], ORDERS * len(examples)


def nearest(draw: Draw, _: int | None, **variation: Any) -> Made:
    """Return the program that shows each input its nearest demos."""
    retrieval = Retrieval(draw.pool, NearestDemos(draw.args.demos, **variation))
    return retrieve_in(draw.program(EMPTY), {"self": retrieval}), 0


def in_random_order(draw: Draw, _: int | None) -> Made:
    """The nearest demos in an order of each input's own."""
    rng = np.random.default_rng(draw.seed)
    last = NearestDemos(draw.args.demos)
    choices = [rng.permutation(draw.pool.shown(each.inputs(), last)).tolist() for each in draw.test]
    return Chosen(draw, draw.test, choices), 0


def knn_few_shot(draw: Draw, _: int | None) -> Made:
    """DSPy's own way to show the nearest demos, by the words that inputs share."""
    words = TfidfVectorizer().fit([each[draw.task.input_field] for each in draw.labelled])
    # A cache would mistake the words of one draw for those of another.
    embedder = dspy.Embedder(lambda texts: words.transform(texts).toarray(), caching=False)
    optimizer = dspy.KNNFewShot(draw.args.demos, draw.labelled, embedder, metric=draw.metric)
    return optimizer.compile(draw.program(EMPTY)), 0


class Vote(dspy.Module):
    """Answers as most of the nearest examples do, the nearest of these first; it calls no language model."""

    def __init__(self, pool: Pool, number: int) -> None:
        super().__init__()
        self.pool = pool
        self.number = number

    def forward(self, **inputs: Any) -> dspy.Prediction:
        return dspy.Prediction(**self.pool.vote(inputs, self.number))


def searched(draw: Draw, _: int | None, *, candidates: int) -> Made:
    """Demos come from one half of the examples and are chosen on the other."""
    middle = len(draw.labelled) // 2
    counted = Calls()
    with redirect_stdout(sys.stderr), dspy.context(callbacks=[counted]):  # it prints every score
        optimizer = dspy.BootstrapFewShotWithRandomSearch(
            metric=draw.metric,
            max_bootstrapped_demos=draw.args.demos // 2,
            max_labeled_demos=draw.args.demos,
            num_candidate_programs=candidates,
            num_threads=draw.args.threads,
            max_errors=10 * len(draw.labelled),  # answers that cannot be parsed are wrong ones
        )
        train = draw.labelled[:middle]
        val = draw.labelled[middle:]
        program = optimizer.compile(draw.program(EMPTY), trainset=train, valset=val)
    return program, len(counted.made)


SIDES: dict[str, Callable[[Draw, int | None], Made]] = {
    ORIGINAL: lambda draw, _: (draw.program(ORIGINAL), 0),
    EMPTY: lambda draw, _: (draw.program(EMPTY), 0),
    **{
        kind.__name__: partial(optimized, kind=kind)
        for kind in (PLReorder, TopKOrder, LocalE, GlobalE, DEmO, PLFewShot)
    },
    "scores": partial(optimized, kind=PLReorder, signal="score"),
    "calibrate": partial(optimized, kind=PLReorder, calibrate=True),
    "PDO few-shot": partial(optimized, kind=PDO),
    "PDO unlabelled": partial(optimized, kind=PDO, setting="unlabelled"),
    "calibrated": batch_calibrated,
    "TopK calibrated": top_k_calibrated,
    SEARCH: partial(searched, candidates=16),
    HALF: partial(searched, candidates=6),  # three more are always scored: no demos, labelled ones, and unshuffled ones
    f"{HALF}, PLReorder": partial(optimized, kind=PLReorder, base=HALF),
    "PLFewShot calibrated": partial(optimized, kind=PLFewShot, calibrate=True),
    "PLFewShot auto": partial(optimized, kind=PLFewShot, demos="auto"),
    "PLFewShot auto calibrated": partial(optimized, kind=PLFewShot, demos="auto", calibrate=True),
    "PLReorder, then calibrated": partial(batch_calibrated, base="PLReorder"),
    "PLFewShot, then calibrated": partial(batch_calibrated, base="PLFewShot"),
    "PLFewShot auto, then calibrated": partial(batch_calibrated, base="PLFewShot auto"),
    "nearest last": nearest,
    "nearest first": partial(nearest, nearest_last=False),
    "frequent labels": partial(nearest, prefer="frequent labels"),
    "random order": in_random_order,
    "vote": lambda draw, _: (Vote(draw.pool, draw.args.demos), 0),
    "KNNFewShot": knn_few_shot,
}
OWN_CALLS = [ORIGINAL, EMPTY, SEARCH, HALF, *PUBLISHED, *[*SIDES][[*SIDES].index("nearest last") :]]
SIDES |= {f"F1 {side}": partial(SIDES[side], by_f1=True) for side in ("PLReorder", "scores", "calibrate", "calibrated")}
OWN_CALLS += ["calibrated", "F1 calibrated"]
"""Sides whose calls those of the random search do not decide."""


def promised(draws: Sequence[dict[str, Result]], side: str) -> dict[str, str]:
    """What reports expect of a side, and how often it came true: scores, and gains over the student where it is one."""
    student = EMPTY if side.startswith("PLFewShot") else ORIGINAL
    told = [(each[side].told, mean(each[side].scores), each) for each in draws if each[side].told is not None]
    gains = [(kept, score - mean(each[student].scores)) for kept, score, each in told if student in each]
    better = [gain for kept, gain in gains if kept.probability >= MIN_WIN_PROBABILITY]
    scores = [(kept.expected_chosen, score) for kept, score, _ in told]
    return {
        "expected": f"{mean([expected[0] for expected, _ in scores]):.3f}" if told else "",
        "inside": f"{sum(low <= score <= high for (_, low, high), score in scores)} of {len(told)}" if told else "",
        "gain expected": f"{mean([kept.expected_gain for kept, _ in gains]):+.3f}" if gains else "",
        "gain": f"{mean([gain for _, gain in gains]):+.3f}" if gains else "",
        "gain inside": str(sum(kept.gain_interval[0] <= gain <= kept.gain_interval[1] for kept, gain in gains)),
        "better, and so": f"{len(better)}, {sum(gain > 0 for gain in better)}",
    }


def print_sides(title: str, draws: Sequence[dict[str, Result]], against: Sequence[str]) -> None:
    """Print each side, and its gains over others: the mean with its interval over draws, and over all examples."""
    rows = []
    for side in draws[0]:
        results = [each[side] for each in draws]
        row = {"": side, "score": f"{mean([mean(each.scores) for each in results]):.3f}"}
        row["calls"] = f"{mean([each.calls for each in results]):,.0f}"
        row["s"] = f"{mean([each.seconds for each in results]):.0f}"
        for other in against:
            gains = [np.subtract(each[side].scores, each[other].scores).tolist() for each in draws]
            of_examples = "[{:+.3f}, {:+.3f}]".format(*paired_interval(list(itertools.chain(*gains))))
            shown = ("", "") if side == other else (with_interval([mean(each) for each in gains]), of_examples)
            row |= dict(zip((f"less {other}, over draws", f"less {other}, over examples"), shown, strict=True))
        row |= promised(draws, side)
        rows.append(row)
    print(f"\n{title}, {len(draws)} draw(s)\n")
    print_table(rows)


def main() -> None:
    given = {"tasks": [BUNDLED], "data_dir": Path, "seeds": [0], "pool": 108, "test": 200, "share": 0.0}
    given |= {"sides": USUAL, "against": [str], "demos": 8}
    args = options(__doc__, among={"tasks": [BUNDLED, *CLASSIFICATION]}, **given, **SERVED)
    if unknown := [side for side in args.sides if side.partition("@")[0] not in SIDES]:
        raise SystemExit(f"--sides must be of {list(SIDES)}, with @ and a number of calls; got {unknown}")
    if missing := set(args.against) - set(args.sides):
        raise SystemExit(f"--against must be of --sides; got {sorted(missing)}")
    found: dict[str, list[dict[str, Result]]] = {task: [] for task in args.tasks}
    with opened(args) as make_lm:
        for seed in args.seeds:
            draws = {task: Draw(task, seed, args, make_lm) for task in args.tasks}
            for task, draw in draws.items():
                with draw.answering():
                    found[task].append({side: draw.result(side) for side in args.sides})
    against = args.against or args.sides[:1]
    for task, results in found.items():
        print_sides(f"{task}, {args.demos} demos", results, against)
    if len(found) > 1:
        print_sides(f"all {len(found)} tasks", list(itertools.chain(*found.values())), against)


if __name__ == "__main__":
    main()

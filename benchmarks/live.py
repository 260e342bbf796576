"""A comparison of methods by their held-out scores on a live model, over tasks and draws of examples.

python benchmarks/live.py                                        # the bundled reviews, the local model
python benchmarks/live.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 8 --cache ...

For each task, each seed draws `--pool` labeled and `--test` held-out examples. All sides share them:

original          `--demos` labeled demos, drawn by `LabeledFewShot`
no demos          the program without demos
PLReorder         the original in another order
scores            PLReorder with signal="score"
calibrate         PLReorder with calibrate=True
TopKOrder, LocalE, GlobalE, PDO few-shot, PDO unlabelled, DEmO
                  the original in the order that the method chooses
calibrated        the original after BatchCalibration
TopK calibrated   the best of 10 random orders, each calibrated
random search     BootstrapFewShotWithRandomSearch with 16 candidates, or as many as the limit on calls allows
half of it        BootstrapFewShotWithRandomSearch with 6 candidates, for about half of the calls
half of it, PLReorder
                  "half of it", then PLReorder
BootstrapFewShot, MIPROv2, SIMBA, GEPA
                  DSPy's optimizers (`peers.py`); the model also writes the instructions
random search, then PLFewShot; MIPROv2, then PLFewShot; GEPA, then PLFewShot
                  PLFewShot, given the other optimizer's program as programs=; that optimizer makes half of the calls
original, then PLFewShot
                  PLFewShot from the original; all other PLFewShot sides start from the program without demos
PLFewShot propose PLFewShot(instructions="propose")
PLFewShot, PLFewShot calibrated, PLFewShot auto, PLFewShot auto calibrated
                  "calibrated" means calibrate=True, and "auto" means demos="auto"
..., then calibrated
                  followed by BatchCalibration, which gets 64 of the calls
nearest last      the `--demos` nearest demos of each input, ending with the nearest
nearest first     the same demos, beginning with the nearest
frequent labels   demos whose labels are frequent among the neighbors of the input, as with max_metric_calls=0
random order      the demos of "nearest last" in a random order
vote              the most frequent label among the nearest demos
KNNFewShot        DSPy's `KNNFewShot`, which bootstraps the nearest demos

With `--share`, the seed selects a label that gets this share of the examples, and the score is this label's F1. The
sides "F1 PLReorder", "F1 scores", "F1 calibrate" and "F1 calibrated" also optimize this F1.

A number after a side's name limits its program calls, as in "PLFewShot@300". Without a number, the limit is the number
of calls in the random search, or the side's own default if the random search is not one of the sides.

With `--format chat`, `dspy.ChatAdapter` renders the prompts, and replies have at most 64 tokens and stop before the
end marker. PLR_DSPY_GGUF=FILE replaces the local model.

Tables show each side's difference from each side in `--against` (by default the first side), with intervals over draws
and over all held-out examples. "LM calls" include calls that write instructions. "Tokens read" are the prompt tokens
of all LM calls that were not in the server's prefix cache. The last columns check the reports: how many held-out scores
and gains lie in the reported intervals, how many reports say "better", and how many of those reports are right. Gains
are over the student, and are omitted if it is not one of the sides.

With `--results FILE`, each finished side is saved in the file and not run again. Only a chain such as "MIPROv2, then
PLFewShot" repeats its first step. `live_results.py` prints the tables of such files. With --cache, DSPy caches all
calls, so an interrupted command also resumes within a side. Seconds and tokens read are then meaningless.
"""

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import dspy
import numpy as np
from command import SERVED, options
from dspy.utils.callback import BaseCallback
from live_results import EMPTY, ORIGINAL, Claim, Result, Results, ResultsFile, Setting, print_tasks
from peers import NUM_BASE_PROGRAMS, PEERS, Peer, compile_with, tokens_read
from sklearn.feature_extraction.text import TfidfVectorizer

from paper.held_out import HeldOut
from paper.model import LOCAL, MakeLM, ServedModel
from paper.tasks import CLASSIFICATION
from plr_dspy import F1, BatchCalibration, CalibratedProgram, PLFewShot, PLReorder, evaluate_programs
from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, TopKOrder
from plr_dspy.labels.batch_calibration import read_replies
from plr_dspy.labels.calibrated_program import calibrated_output
from plr_dspy.local import WEIGHTS_VARIABLE
from plr_dspy.programs.splits import source_of
from plr_dspy.report.schema import Comparison
from plr_dspy.retrieval.nearest import NearestDemos, Pool
from plr_dspy.retrieval.predict import Retrieval, retrieve_in
from plr_dspy.statistics.calibration import calibrated
from quickstart import BUNDLED, load_data, mean

SEARCH = "random search"
HALF = "half of it"
PUBLISHED = ["LocalE", "GlobalE", "PDO few-shot", "DEmO"]
USUAL = [ORIGINAL, "TopKOrder@1000", *PUBLISHED, "PDO unlabelled@1000", "PLReorder@1000"]
NUM_ORDERS = 10  # number of random orders in "TopK calibrated"
CALIBRATION_CALLS = 64
# The marker that `dspy.ChatAdapter` requests after the last field. Replies can be parsed without the
# marker, so they stop before it.
CHAT_END = "\n\n[[ ## completed"
USUAL_CALLS = 300  # default limit for DSPy's optimizers


@dataclass(frozen=True)
class SideProgram:
    """The program of a side.

    Attributes:
        calls: Number of calls made to get the program, including the calls for its base.
        comparison: The comparison in the optimizer's report.
        base: The side whose program was optimized further, or an empty string.
    """

    program: dspy.Module
    calls: int = 0
    comparison: Comparison | None = None
    base: str = ""


@dataclass(frozen=True)
class TimedProgram:
    """The program of a side, and its cost as in `Result`."""

    side_program: SideProgram
    lm_calls: int
    seconds: float
    tokens_read: float | None

    def after(self, base: "TimedProgram") -> "TimedProgram":
        """Return this program with the costs of its base added."""
        read = None
        if self.tokens_read is not None and base.tokens_read is not None:
            read = self.tokens_read + base.tokens_read
        return TimedProgram(
            self.side_program, self.lm_calls + base.lm_calls, self.seconds + base.seconds, read
        )


def open_model(args: argparse.Namespace) -> AbstractContextManager[MakeLM]:
    """Return a context manager that yields a function to build LMs for the model in `args`."""
    return ServedModel(args.model, tuple(args.api_base), cache=args.cache).open(format=args.format)


def model_name(args: argparse.Namespace) -> str:
    """Return the name of the model in `args`, or of the weights that replace the local model."""
    weights = os.environ.get(WEIGHTS_VARIABLE)
    if args.model == LOCAL and weights:
        return Path(weights).stem
    return str(args.model)


class Draw:
    """A random draw of a task's examples, with the results of all sides.

    Attributes:
        rare: The label whose F1 is the score, or None if the score is the accuracy.
    """

    def __init__(
        self, name: str, seed: int, args: argparse.Namespace, make_lm: MakeLM, results: ResultsFile
    ) -> None:
        data = load_data(name, args.data_dir)
        self.rng = random.Random(seed)
        self.task = data.task
        self.seed = seed
        self.args = args
        self.make_lm = make_lm
        self.results = results
        self.rare: str | None = None
        if args.share:
            counts = Counter(example[self.task.output_field] for example in data.test)
            frequent = [label for label, count in counts.items() if count >= args.share * args.test]
            self.rare = self.rng.choice(sorted(frequent))
        self.labeled = self._drawn(data.train, args.pool)
        self.test = self._drawn(data.test, args.test)
        self.metric = data.task.metric()
        self.common = {"num_threads": args.threads, "seed": seed, "display_progress": False}
        self.output = calibrated_output(self.program(EMPTY))
        self._timed: dict[str, TimedProgram] = {}

    def _drawn(self, examples: Sequence[dspy.Example], number: int) -> list[dspy.Example]:
        """Return random examples. If there is a rare label, --share of the examples have this label."""
        if self.rare is None:
            return self.rng.sample(examples, min(number, len(examples)))
        field = self.task.output_field
        num_rare = round(self.args.share * number)
        rare_examples = [example for example in examples if example[field] == self.rare]
        other_examples = [example for example in examples if example[field] != self.rare]
        drawn = self.rng.sample(rare_examples, num_rare)
        drawn += self.rng.sample(other_examples, number - num_rare)
        return self.rng.sample(drawn, number)

    def answering(self) -> AbstractContextManager[None]:
        """Return a context with the LM and the prompt format of this task."""
        lm = self.make_lm(self.task.max_tokens(self.args.format))
        if self.args.format == "chat":
            lm = lm.copy(stop=[CHAT_END])
        return dspy.context(lm=lm, adapter=self.task.adapter(self.args.format))

    @property
    def setting(self) -> Setting:
        """The setting under which the results of this draw are stored."""
        args = self.args
        return Setting(
            model_name(args),
            args.format,
            args.cache,
            self.task.name,
            self.seed,
            args.demos,
            args.pool,
            args.test,
            args.share,
        )

    def result(self, side: str) -> Result:
        """Return the result of a side. If the results file has it, do not run the side."""
        result = self.results.find(self.setting, side)
        if result is None:
            result = self._measure(side)
            self.results.add(self.setting, side, result)
            text = f"{side} {mean(result.scores):.3f}, {result.calls:,} calls, {result.seconds:.0f} s"
            print(f"{self.task.name}, seed {self.seed}: {text}", flush=True)
        return result

    def _measure(self, side: str) -> Result:
        timed = self.timed(side)
        side_program = timed.side_program
        claim = None
        if side_program.comparison is not None:
            claim = Claim.of(side_program.comparison)
        scores = self._scores(side_program.program)
        return Result(side_program.calls, timed.lm_calls, timed.seconds, timed.tokens_read, scores, claim)

    def timed(self, side: str) -> TimedProgram:
        """Return the program of a side, and its cost. Each program is made only once per process."""
        if side not in self._timed:
            earlier = dict(self._timed)
            name, _, calls = side.partition("@")
            budget = int(calls) if calls else None
            if budget is None and SEARCH in self.args.sides and name not in OWN_CALLS:
                budget = self.result(SEARCH).calls
            api_base = dspy.settings.lm.kwargs.get("api_base", "")
            counter = CallCounter()
            read_before = tokens_read(api_base)
            began = time.perf_counter()
            with dspy.context(callbacks=[*dspy.settings.callbacks, counter]):
                side_program = SIDES[name](self, budget)
            seconds = time.perf_counter() - began
            read = None
            if read_before is not None:
                read = tokens_read(api_base) - read_before
            timed = TimedProgram(side_program, len(counter.ids), seconds, read)
            if side_program.base in earlier:
                timed = timed.after(earlier[side_program.base])
            self._timed[side] = timed
        return self._timed[side]

    def _scores(self, program: dspy.Module) -> list[float]:
        num_threads = self.args.threads
        if self.rare is None:
            scorer = HeldOut(program, metric=self.metric, examples=self.test, num_threads=num_threads)
            return scorer.scores()
        evaluation = evaluate_programs(
            {"program": program}, F1(self.rare), self.test, num_threads=num_threads, display_progress=False
        )
        return [evaluation.programs["program"].score]

    def program(self, side: str) -> dspy.Module:
        """Return the program of a side, or the unoptimized program for `ORIGINAL` and `EMPTY`."""
        if side not in (ORIGINAL, EMPTY):
            return self.timed(side).side_program.program
        student = dspy.Predict(self.task.signature)
        if side == EMPTY:
            return student
        optimizer = dspy.LabeledFewShot(k=self.args.demos)
        # If a label is rare, the examples are already shuffled.
        return optimizer.compile(student, trainset=self.labeled, sample=self.rare is None)

    @cached_property
    def pool(self) -> Pool:
        """The labeled examples from which demos are retrieved."""
        sources = [source_of(example.inputs()) for example in self.labeled]
        return Pool(self.program(EMPTY), self.labeled, sources)


class FixedRetrieval(dspy.Predict):
    """A predictor with given demos for each example. `choices` has the demos' indices in `draw.labeled`."""

    def __init__(
        self, draw: Draw, examples: Sequence[dspy.Example], choices: Sequence[Sequence[int]]
    ) -> None:
        super().__init__(draw.task.signature)
        self.by_inputs = {}
        for example, numbers in zip(examples, choices, strict=True):
            self.by_inputs[source_of(example.inputs())] = [draw.labeled[number] for number in numbers]

    def forward(self, **inputs: str) -> dspy.Prediction:
        return super().forward(demos=self.by_inputs[source_of(inputs)], **inputs)


def optimized(
    draw: Draw, calls: int | None, *, kind: Any, base: str = ORIGINAL, by_f1: bool = False, **settings: Any
) -> SideProgram:
    """Optimize the program of the side `base` with an optimizer of this package, in the remaining calls."""
    if kind is PLFewShot:
        settings["max_demos"] = draw.args.demos
    spent = 0
    if base not in (ORIGINAL, EMPTY):
        spent = draw.timed(base).side_program.calls
    if calls is not None:
        settings["max_metric_calls"] = calls - spent
    optimizer = kind(F1(draw.rare) if by_f1 else draw.metric, **draw.common, **settings)
    program = optimizer.compile(draw.program(base), trainset=draw.labeled)
    report = optimizer.report
    return SideProgram(program, spent + report.program_calls["total"], report.comparison, base)


class CallCounter(BaseCallback):
    """A counter of LM calls. It includes cached calls, because a side that runs alone would make them."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def on_lm_start(self, call_id: str, instance: object, inputs: dict[str, object]) -> None:
        self.ids.append(call_id)


def batch_calibrated(
    draw: Draw, calls: int | None, *, base: str = ORIGINAL, by_f1: bool = False
) -> SideProgram:
    """Calibrate the original or another side. Any other side leaves 64 calls for the calibration."""
    spent = 0
    num_inputs = calls or CALIBRATION_CALLS
    if base != ORIGINAL:
        base = f"{base}@{(calls or 364) - CALIBRATION_CALLS}"
        num_inputs = CALIBRATION_CALLS
        spent = draw.timed(base).side_program.calls
    counter = CallCounter()
    optimizer = BatchCalibration(
        num_inputs=num_inputs, metric=F1(draw.rare) if by_f1 else None, **draw.common
    )
    with dspy.context(callbacks=[*dspy.settings.callbacks, counter]):
        program = optimizer.compile(draw.program(base), trainset=draw.labeled)
    return SideProgram(program, spent + len(counter.ids), base=base)


def top_k_calibrated(draw: Draw, calls: int | None) -> SideProgram:
    """Return the random order whose calibrated answers are best. Calibrate and score on the same inputs."""
    rng = random.Random(draw.seed)
    program = draw.program(ORIGINAL)
    demos = list(program.predictors()[0].demos)
    shown = [dict(demo) for demo in demos]
    pool = [example for example in draw.labeled if example.toDict() not in shown]
    examples = rng.sample(pool, min(len(pool), (calls or 250) // NUM_ORDERS))
    right_labels = draw.output.numbers(examples)
    candidates = []
    for number in range(NUM_ORDERS):
        ordered = program.deepcopy()
        ordered.predictors()[0].demos = rng.sample(demos, len(demos)) if number else demos
        replies = read_replies(ordered, examples, draw.output, num_threads=draw.args.threads, max_errors=1)
        calibration = replies.calibrated_to()
        log_probabilities = calibrated(
            replies.log_probabilities, calibration.offsets, unseen=replies.unseen
        )
        num_right = (log_probabilities.argmax(axis=1) == right_labels[replies.inputs]).sum()
        candidates.append((num_right, CalibratedProgram(ordered, calibration)))
    _, best = max(candidates, key=itemgetter(0))
    return SideProgram(best, NUM_ORDERS * len(examples))


def nearest(draw: Draw, _: int | None, **variation: Any) -> SideProgram:
    """Return the program that shows the nearest demos of each input."""
    retrieval = Retrieval(draw.pool, NearestDemos(draw.args.demos, **variation))
    return SideProgram(retrieve_in(draw.program(EMPTY), {"self": retrieval}))


def in_random_order(draw: Draw, _: int | None) -> SideProgram:
    """Return a program that shows the nearest demos of each input in a random order."""
    rng = np.random.default_rng(draw.seed)
    choices = []
    for example in draw.test:
        numbers = draw.pool.shown(example.inputs(), NearestDemos(draw.args.demos))
        choices.append(rng.permutation(numbers).tolist())
    return SideProgram(FixedRetrieval(draw, draw.test, choices))


def knn_few_shot(draw: Draw, _: int | None) -> SideProgram:
    """Return the program of DSPy's `KNNFewShot`, with an embedder that compares words."""
    words = TfidfVectorizer().fit([example[draw.task.input_field] for example in draw.labeled])
    # Do not cache embeddings, because the vector of a text differs between draws.
    embedder = dspy.Embedder(lambda texts: words.transform(texts).toarray(), caching=False)
    optimizer = dspy.KNNFewShot(draw.args.demos, draw.labeled, embedder, metric=draw.metric)
    return SideProgram(optimizer.compile(draw.program(EMPTY)))


class Vote(dspy.Module):
    """A program that answers with the most frequent label of the nearest examples, without an LM."""

    def __init__(self, pool: Pool, number: int) -> None:
        super().__init__()
        self.pool = pool
        self.number = number

    def forward(self, **inputs: str) -> dspy.Prediction:
        return dspy.Prediction(**self.pool.vote(inputs, self.number))


def by_peer(draw: Draw, calls: int | None, *, peer: str, candidates: int = 0) -> SideProgram:
    """Return the program of one of DSPy's optimizers, and the number of its LM calls.

    Args:
        candidates: Number of candidates in the random search if `calls` is None.
    """
    if calls is None:
        calls = USUAL_CALLS
        if candidates:
            calls = (candidates + NUM_BASE_PROGRAMS) * (len(draw.labeled) - len(draw.labeled) // 2)
    counter = CallCounter()
    of_draw = Peer(
        student=draw.program(EMPTY),
        labeled=draw.labeled,
        metric=draw.metric,
        output_field=draw.task.output_field,
        make_lm=draw.make_lm,
        demos=draw.args.demos,
        calls=calls,
        threads=draw.args.threads,
        seed=draw.seed,
    )
    with dspy.context(callbacks=[*dspy.settings.callbacks, counter]):
        program = compile_with(peer, of_draw)
    return SideProgram(program, len(counter.ids))


def after_peer(draw: Draw, calls: int | None, *, peer: str) -> SideProgram:
    """Run PLFewShot with a program that one of DSPy's optimizers makes in half of the calls."""
    calls = calls or 2 * USUAL_CALLS
    name = f"{peer}@{calls // 2}"
    spent = draw.timed(name).side_program.calls
    optimizer = PLFewShot(
        draw.metric, max_demos=draw.args.demos, max_metric_calls=calls - spent, **draw.common
    )
    program = optimizer.compile(
        draw.program(EMPTY), trainset=draw.labeled, programs={peer: draw.program(name)}
    )
    report = optimizer.report
    return SideProgram(program, spent + report.program_calls["total"], report.comparison, name)


def unchanged(draw: Draw, _: int | None, *, side: str) -> SideProgram:
    return SideProgram(draw.program(side))


def vote(draw: Draw, _: int | None) -> SideProgram:
    return SideProgram(Vote(draw.pool, draw.args.demos))


OF_INPUT: dict[str, Callable[[Draw, int | None], SideProgram]] = {
    "nearest last": nearest,
    "nearest first": partial(nearest, nearest_last=False),
    "frequent labels": partial(nearest, prefer="frequent labels"),
    "random order": in_random_order,
    "vote": vote,
    "KNNFewShot": knn_few_shot,
}
REORDERED: dict[str, Callable[..., SideProgram]] = {
    "PLReorder": partial(optimized, kind=PLReorder),
    "scores": partial(optimized, kind=PLReorder, signal="score"),
    "calibrate": partial(optimized, kind=PLReorder, calibrate=True),
    "calibrated": batch_calibrated,
}
FEW_SHOT = partial(optimized, kind=PLFewShot, base=EMPTY)
SIDES: dict[str, Callable[[Draw, int | None], SideProgram]] = {
    ORIGINAL: partial(unchanged, side=ORIGINAL),
    EMPTY: partial(unchanged, side=EMPTY),
    **REORDERED,
    **{f"F1 {name}": partial(make, by_f1=True) for name, make in REORDERED.items()},
    "TopKOrder": partial(optimized, kind=TopKOrder),
    "LocalE": partial(optimized, kind=LocalE),
    "GlobalE": partial(optimized, kind=GlobalE),
    "DEmO": partial(optimized, kind=DEmO),
    "PDO few-shot": partial(optimized, kind=PDO),
    "PDO unlabelled": partial(optimized, kind=PDO, setting="unlabelled"),
    "TopK calibrated": top_k_calibrated,
    SEARCH: partial(by_peer, peer=SEARCH, candidates=16),
    HALF: partial(by_peer, peer=SEARCH, candidates=6),
    f"{HALF}, PLReorder": partial(optimized, kind=PLReorder, base=HALF),
    "PLFewShot": FEW_SHOT,
    "PLFewShot calibrated": partial(FEW_SHOT, calibrate=True),
    "PLFewShot auto": partial(FEW_SHOT, demos="auto"),
    "PLFewShot auto calibrated": partial(FEW_SHOT, demos="auto", calibrate=True),
    "PLReorder, then calibrated": partial(batch_calibrated, base="PLReorder"),
    "PLFewShot, then calibrated": partial(batch_calibrated, base="PLFewShot"),
    "PLFewShot auto, then calibrated": partial(batch_calibrated, base="PLFewShot auto"),
    **OF_INPUT,
    **{name: partial(by_peer, peer=name) for name in PEERS if name != SEARCH},
    **{f"{name}, then PLFewShot": partial(after_peer, peer=name) for name in PEERS},
    "original, then PLFewShot": partial(FEW_SHOT, base=ORIGINAL),
    "PLFewShot propose": partial(FEW_SHOT, instructions="propose"),
}
OWN_CALLS = [ORIGINAL, EMPTY, SEARCH, HALF, *PUBLISHED, *OF_INPUT, *PEERS, "calibrated", "F1 calibrated"]
"""Sides whose limit on calls does not depend on the random search."""


def main() -> None:
    args = options(
        __doc__,
        among={"tasks": [BUNDLED, *CLASSIFICATION], "format": ["plain", "chat"]},
        tasks=[BUNDLED],
        data_dir=Path,
        seeds=[0],
        pool=108,
        test=200,
        share=0.0,
        sides=USUAL,
        against=[str],
        demos=8,
        format="plain",
        results=Path,
        **SERVED,
    )
    unknown = [side for side in args.sides if side.partition("@")[0] not in SIDES]
    if unknown:
        raise SystemExit(
            f"--sides must be among {list(SIDES)}, optionally with @ and a number of calls; got {unknown}: replace "
            "these names"
        )
    against = args.against or args.sides[:1]
    unlimited = [side for side in args.sides if "@" not in side and side not in OWN_CALLS]
    if args.results and unlimited:
        raise SystemExit(
            f"--results needs a number of calls for {unlimited}, because the default number depends on other sides: "
            f"write, for example, {unlimited[0]}@300"
        )
    missing = set(against) - set(args.sides)
    if missing:
        raise SystemExit(
            f"--against must be among --sides; got {sorted(missing)}: add these sides to --sides"
        )
    results = ResultsFile(args.results)
    results_by_task: dict[str, list[Results]] = {task: [] for task in args.tasks}
    with open_model(args) as make_lm:
        for seed in args.seeds:
            draws = {task: Draw(task, seed, args, make_lm, results) for task in args.tasks}
            for task, draw in draws.items():
                with draw.answering():
                    results_by_task[task].append({side: draw.result(side) for side in args.sides})
    print_tasks(results_by_task, args.demos, against)


if __name__ == "__main__":
    main()

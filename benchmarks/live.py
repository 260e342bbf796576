"""Live comparisons: held-out accuracy of several ways to spend program calls, over tasks and draws of examples.

python benchmarks/live.py                                        # all methods, the bundled reviews, the local model
python benchmarks/live.py --tasks mr subj --data-dir DATA --sides original PLReorder@250 scores@250 scores@1000
python benchmarks/live.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 8 --cache ...

Each seed draws `--pool` labelled and `--test` held-out examples of each task, the same for all sides. The side
"original" shows `--demos` of the labelled ones, as `LabeledFewShot` draws them; "no demos" shows none. The others:

PLReorder         the original in another order; "scores" learns from scores alone, "calibrate" has calibrate=True
TopKOrder, LocalE, GlobalE, "PDO few-shot", "PDO unlabelled", DEmO     the original in the order of these methods
calibrated        BatchCalibration of the original; 64 calls without a number
TopK calibrated   the best of 10 random orders by calibrated answers
random search     BootstrapFewShotWithRandomSearch with `--candidates` programs, at most half of the demos bootstrapped;
                  "half of it" has the number that takes about half of the calls, "half of it, PLReorder" its demos in
                  a better order
PLFewShot         which demos, how many, in what order; "PLFewShot calibrated"; "PLFewShot auto" and "PLFewShot auto
                  calibrated" have demos="auto", where rules that find demos for each input compete; with ", then
                  calibrated" after these, BatchCalibration of the choice has 64 of the calls
nearest last      `--demos` demos found for each input, the nearest last; "nearest first"; "vote": their most frequent
                  label, without a language model; "KNNFewShot": DSPy's, which bootstraps the nearest at each prediction

A side has the program calls after its name, as in "PLFewShot@300"; without a number those of the random search where
that is one of the sides, and else its own default: that of their papers for LocalE, GlobalE, "PDO few-shot" and DEmO.
Tables have the difference of each side to each of `--against` (the first side): the mean with
its interval over draws, and the interval over all held-out examples. With --cache calls that several sides make are
made once, and the seconds say nothing. What is done is kept in `--out` by everything that decides it, so that the same
command goes on where it was stopped, and takes up nothing of another model, other examples or another version.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import numpy as np
from command import head, options, row, with_interval
from dspy.utils.callback import BaseCallback
from sklearn.feature_extraction.text import TfidfVectorizer

import paper
import plr_dspy
from paper.held_out import HeldOut
from paper.model import LOCAL, ServedModel
from paper.tasks import CLASSIFICATION
from plr_dspy import BatchCalibration, CalibratedProgram, PLFewShot, PLReorder
from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, TopKOrder
from plr_dspy.labels.batch_calibration import read_replies
from plr_dspy.labels.calibrated_program import calibrated_output
from plr_dspy.local.server import find_weights
from plr_dspy.programs.identity import digest
from plr_dspy.retrieval.predict import Retrieval, retrieve_in
from plr_dspy.retrieval.rule import Pool, Rule
from plr_dspy.runtime.files import write_atomically
from plr_dspy.statistics.calibration import calibrated
from plr_dspy.statistics.comparisons import paired_interval
from quickstart import BUNDLED, Data, load_data, mean

ORIGINAL, EMPTY, SEARCH, HALF = "original", "no demos", "random search", "half of it"
PUBLISHED = ["LocalE", "GlobalE", "PDO few-shot", "DEmO"]
USUAL = [ORIGINAL, "TopKOrder@1000", *PUBLISHED, "PDO unlabelled@1000", "PLReorder@1000"]
ORDERS = 10
"""Of "TopK calibrated": each on a tenth of the calls."""

NOT_DECIDING = {"against", "api_base", "data_dir", "out", "seeds", "sides", "tasks", "threads"}
"""Options that do not decide a result, or that a result's task, seed, side and examples stand for."""

Made = tuple[dspy.Module, int]
"""A program, and the calls that it took."""


@dataclass(frozen=True)
class Result:
    """A program's demos, the calls and the seconds that it took, and its scores on the held-out examples."""

    demos: list[dict[str, Any]]
    calls: int
    seconds: float
    scores: list[float]


class Draw:
    """One draw of examples, and what every side makes of it."""

    def __init__(self, data: Data, seed: int, args: argparse.Namespace) -> None:
        rng = random.Random(seed)
        self.labelled = rng.sample(data.train, min(args.pool, len(data.train)))
        self.test = rng.sample(data.test, min(args.test, len(data.test)))
        self.data, self.seed, self.args = data, seed, args
        self.metric = data.task.metric()
        self.common = {"num_threads": args.threads, "seed": seed, "display_progress": False}
        self._known: dict[str, Result] = {}

    def result(self, side: str) -> Result:
        """Made, or read where it was made before."""
        if side not in self._known:
            how, _, calls = side.partition("@")
            searched = SEARCH in self.args.sides and how not in OWN_CALLS and not calls
            budget = int(calls) if calls else self.result(SEARCH).calls if searched else OWN_CALLS.get(how)
            folder = self.folder(f"{how}@{budget}")
            if not (path := folder / "result.json").exists():
                write_atomically(path, json.dumps(asdict(self._made(how, budget, folder))).encode())
            self._known[side] = found = Result(**json.loads(path.read_text()))
            told = f"{side} {mean(found.scores):.3f}, {found.calls:,} calls, {found.seconds:.0f} s"
            print(f"{self.data.task.name}, seed {self.seed}: {told}", flush=True)
        return self._known[side]

    def _made(self, how: str, calls: int | None, folder: Path) -> Result:
        """Make a side, and score it; what was paid for is kept in its folder."""
        began = time.perf_counter()
        program, taken = SIDES[how](self, calls)
        seconds = time.perf_counter() - began
        demos = [dict(demo) for predictor in program.predictors()[:1] for demo in predictor.demos]
        scored = {"metric": self.metric, "num_threads": self.args.threads, "folder": folder}
        return Result(demos, taken, seconds, HeldOut(program, examples=self.test, **scored).scores())

    def program(self, side: str) -> dspy.Module:
        """The program without demos, with labelled ones, or with those of a side."""
        student = dspy.Predict(self.data.task.signature)
        if side == ORIGINAL:
            return dspy.LabeledFewShot(k=self.args.demos).compile(student, trainset=self.labelled)
        student.demos = [dspy.Example(**demo) for demo in self.result(side).demos] if side != EMPTY else []
        return student

    def folder(self, side: str) -> Path:
        """The folder of a side, where `decided_by.json` says what its result is of."""
        decided_by = {name: value for name, value in vars(self.args).items() if name not in NOT_DECIDING}
        code = [*Path(plr_dspy.__file__).parent.rglob("*.py"), *Path(paper.__file__).parent.rglob("*.py")]
        decided_by |= {
            "task": self.data.task.name,
            "seed": self.seed,
            "side": side,
            "dspy": dspy.__version__,
            "examples": [digest(part) for part in (self.labelled, self.test)],
            "weights": digest_of_files(find_weights()) if self.args.model == LOCAL else None,
            "code": digest_of_files(Path(__file__), *sorted(code)),
        }
        text = json.dumps(decided_by, indent=2, sort_keys=True)
        name = f"{side.replace(' ', '_')}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        folder: Path = self.args.out / self.data.task.name / f"seed{self.seed}" / name
        write_atomically(folder / "decided_by.json", text.encode())
        return folder


@functools.cache
def digest_of_files(*paths: Path) -> str:
    """Digest the contents of files, in their order."""
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()


def optimized(draw: Draw, calls: int | None, *, kind: Any, base: str = ORIGINAL, **settings: Any) -> Made:
    """What an optimizer of this package makes of another side, with the calls that are left."""
    spent = 0 if base in (ORIGINAL, EMPTY) else draw.result(base).calls
    budget = {} if calls is None else {"max_metric_calls": calls - spent}
    if kind is PLFewShot:
        budget["max_demos"] = draw.args.demos
    log = draw.folder(" ".join([kind.__name__, base, *map(str, settings.items()), str(calls)])) / "log"
    optimizer = kind(draw.metric, log_dir=log, **draw.common, **budget, **settings)
    made = optimizer.compile(draw.program(base), trainset=draw.labelled)
    return made, spent + optimizer.report.program_calls["total"]


class Calls(BaseCallback):  # type: ignore[misc]
    """Counts LM calls, those that DSPy's cache answers among them: every side would have to pay for them."""

    def __init__(self) -> None:
        self.count, self._lock = 0, threading.Lock()

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        with self._lock:
            self.count += 1


def batch_calibrated(draw: Draw, calls: int | None, program: dspy.Module | None = None) -> Made:
    """A program, or the original, with its answers calibrated, or as it is where labels decide so."""
    optimizer, counted = BatchCalibration(num_inputs=calls, **draw.common), Calls()
    with dspy.context(callbacks=[counted]):
        made = optimizer.compile(program or draw.program(ORIGINAL), trainset=draw.labelled)
    return made, counted.count


def calibrated_afterwards(draw: Draw, calls: int | None, **settings: Any) -> Made:
    """What `PLFewShot` chooses with all but 64 of the calls, which calibrate it."""
    program, searched = optimized(draw, (calls or 364) - 64, kind=PLFewShot, base=EMPTY, **settings)
    made, more = batch_calibrated(draw, 64, program)
    return made, searched + more


def top_k_calibrated(draw: Draw, calls: int | None) -> Made:
    """The best of random orders by calibrated answers, each calibrated on the inputs that it is scored on."""
    rng, program = random.Random(draw.seed), draw.program(ORIGINAL)
    output, demos = calibrated_output(program, None), program.predictors()[0].demos
    pool = [each for each in draw.labelled if not any(each.toDict() == dict(demo) for demo in demos)]
    examples = rng.sample(pool, min(len(pool), (calls or 250) // ORDERS))
    right = np.array([list(output.labels).index(example[output.name]) for example in examples])
    best, found = -1.0, program
    for number in range(ORDERS):
        ordered = program.deepcopy()
        ordered.predictors()[0].demos = rng.sample(list(demos), len(demos)) if number else list(demos)
        told = read_replies(ordered, examples, output, num_threads=draw.args.threads, max_errors=1)
        kept = told.calibrated_to()
        moved = calibrated(told.log_probabilities, kept.offsets, unseen=told.unseen)
        correct = (moved.argmax(axis=1) == right[told.inputs]).sum() / len(examples)
        if correct > best:
            best, found = correct, CalibratedProgram(ordered, kept)
    return found, ORDERS * len(examples)


def found(draw: Draw, _: int | None, *, rule: Rule | None) -> Made:
    """Demos found for each input by a rule; without one, a vote of the nearest, which calls no language model."""
    student = draw.program(EMPTY)
    (name, predictor), *_ = student.named_predictors()
    pool = Pool(predictor, draw.labelled, [""] * len(draw.labelled))
    if rule is None:
        return Vote(pool, draw.args.demos), 0
    return retrieve_in(student, {name: Retrieval(pool, replace(rule, num_demos=draw.args.demos))}), 0


def knn_few_shot(draw: Draw, _: int | None) -> Made:
    """DSPy's own way to show the nearest demos, by the words that inputs share."""
    (name,) = draw.data.task.signature.input_fields
    words = TfidfVectorizer().fit([each[name] for each in draw.labelled])
    embedder = dspy.Embedder(lambda texts: words.transform(texts).toarray())
    options = {"trainset": draw.labelled, "vectorizer": embedder, "metric": draw.metric}
    return dspy.KNNFewShot(draw.args.demos, **options).compile(draw.program(EMPTY)), 0


class Vote(dspy.Module):  # type: ignore[misc]
    """Answers as most of the nearest examples do, the nearest of these first."""

    def __init__(self, pool: Pool, number: int) -> None:
        super().__init__()
        self.pool, self.number = pool, number

    def forward(self, **inputs: Any) -> dspy.Prediction:
        return dspy.Prediction(**self.pool.vote(inputs, self.number))


def searched(draw: Draw, _: int | None, *, half: bool) -> Made:
    """Demos come from one half of the examples and are chosen on the other."""
    middle, counted, candidates = len(draw.labelled) // 2, Calls(), draw.args.candidates
    if half:  # three more are always scored: no demos, labelled ones, and unshuffled ones
        candidates = (candidates + 3) // 2 - 3
    with redirect_stdout(sys.stderr), dspy.context(callbacks=[counted]):  # it prints every score
        optimizer = dspy.BootstrapFewShotWithRandomSearch(
            metric=draw.metric,
            max_bootstrapped_demos=draw.args.demos // 2,
            max_labeled_demos=draw.args.demos,
            num_candidate_programs=candidates,
            num_threads=draw.args.threads,
            max_errors=10 * len(draw.labelled),  # answers that cannot be parsed are wrong ones
        )
        parts = {"trainset": draw.labelled[:middle], "valset": draw.labelled[middle:]}
        program = optimizer.compile(draw.program(EMPTY), **parts)
    return program, counted.count


SIDES: dict[str, Callable[[Draw, int | None], Made]] = {
    ORIGINAL: lambda draw, _: (draw.program(ORIGINAL), 0),
    EMPTY: lambda draw, _: (draw.program(EMPTY), 0),
    "PLReorder": partial(optimized, kind=PLReorder),
    "scores": partial(optimized, kind=PLReorder, signal="score"),
    "calibrate": partial(optimized, kind=PLReorder, calibrate=True),
    "TopKOrder": partial(optimized, kind=TopKOrder),
    "LocalE": partial(optimized, kind=LocalE),
    "GlobalE": partial(optimized, kind=GlobalE),
    "PDO few-shot": partial(optimized, kind=PDO),
    "PDO unlabelled": partial(optimized, kind=PDO, setting="unlabelled"),
    "DEmO": partial(optimized, kind=DEmO),
    "calibrated": batch_calibrated,
    "TopK calibrated": top_k_calibrated,
    SEARCH: partial(searched, half=False),
    HALF: partial(searched, half=True),
    f"{HALF}, PLReorder": partial(optimized, kind=PLReorder, base=HALF),
    "PLFewShot": partial(optimized, kind=PLFewShot, base=EMPTY),
    "PLFewShot calibrated": partial(optimized, kind=PLFewShot, base=EMPTY, calibrate=True),
    "PLFewShot auto": partial(optimized, kind=PLFewShot, base=EMPTY, demos="auto"),
    "PLFewShot auto calibrated": partial(optimized, kind=PLFewShot, base=EMPTY, demos="auto", calibrate=True),
    "PLFewShot, then calibrated": calibrated_afterwards,
    "PLFewShot auto, then calibrated": partial(calibrated_afterwards, demos="auto"),
    "nearest last": partial(found, rule=Rule()),
    "nearest first": partial(found, rule=Rule(nearest_last=False)),
    "vote": partial(found, rule=None),
    "KNNFewShot": knn_few_shot,
}
OWN_CALLS: dict[str, int | None] = {
    **dict.fromkeys((ORIGINAL, EMPTY, SEARCH, HALF, "nearest last", "nearest first", "vote", "KNNFewShot"), 0),
    **dict.fromkeys(PUBLISHED),
    "calibrated": 64,
}
"""Of sides that others' numbers do not decide; None for what an optimizer takes by itself."""


def print_table(title: str, draws: Sequence[dict[str, Result]], against: Sequence[str]) -> None:
    """Print lines of Markdown: each side, and its differences."""
    of_each = [name for other in against for name in (f"less {other}, over draws", "over examples")]
    print(f"\n{title}, {len(draws)} draw(s), {len(draws[0][against[0]].scores)} held-out examples each\n")
    print(head("", "accuracy", "calls", "s", *of_each))
    for side in draws[0]:
        results = [each[side] for each in draws]
        accuracy = mean([mean(result.scores) for result in results])
        calls, seconds = (mean([getattr(r, name) for r in results]) for name in ("calls", "seconds"))
        differences = [cell for other in against for cell in gain(draws, side, other)]
        print(row(side, f"{accuracy:.3f}", f"{calls:,.0f}", f"{seconds:.0f}", *differences))


def gain(draws: Sequence[dict[str, Result]], side: str, other: str) -> tuple[str, str]:
    """The mean gain over another side with its interval over draws, and the interval over all examples."""
    if side == other:
        return "", ""
    gains = [np.subtract(each[side].scores, each[other].scores).tolist() for each in draws]
    examples = "[{:+.3f}, {:+.3f}]".format(*paired_interval(list(itertools.chain(*gains))))
    return with_interval([mean(each) for each in gains]), examples


def main() -> None:
    args = options(
        __doc__ or "",
        among={"tasks": [BUNDLED, *CLASSIFICATION]},
        tasks=[BUNDLED],
        data_dir=Path,
        seeds=[0],
        sides=USUAL,
        against=[str],
        demos=8,
        pool=108,
        test=200,
        candidates=16,
        model=LOCAL,
        api_base=[str],
        cache=False,
        threads=2,
        out=Path("runs/live"),
    )
    if unknown := [side for side in args.sides if side.partition("@")[0] not in SIDES]:
        raise SystemExit(f"--sides must be of {list(SIDES)}, with @ and a number of calls; got {unknown}")
    if missing := set(args.against) - set(args.sides):
        raise SystemExit(f"--against must be of --sides; got {sorted(missing)}")
    if args.candidates < 6:
        raise SystemExit("--candidates must be at least 6, so that half of the search has some")
    found: dict[str, list[dict[str, Result]]] = {task: [] for task in args.tasks}
    served_model = ServedModel(args.model, tuple(args.api_base), cache=args.cache)
    with served_model.open(format="plain") as make_lm:
        for seed, task in itertools.product(args.seeds, args.tasks):
            data = load_data(task, args.data_dir)
            lm, adapter = make_lm(data.task.max_tokens("plain")), data.task.adapter("plain")
            with dspy.context(lm=lm, adapter=adapter):
                draw = Draw(data, seed, args)
                found[task].append({side: draw.result(side) for side in args.sides})
    against = args.against or args.sides[:1]
    for task, draws in found.items():
        print_table(f"{task}, {args.demos} demos", draws, against)
    if len(found) > 1:
        print_table(f"all {len(found)} tasks", [each for draws in found.values() for each in draws], against)


if __name__ == "__main__":
    main()

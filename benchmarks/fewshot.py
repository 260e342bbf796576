"""Which demos, how many, in what order, live: the optimizers that a user can choose from, at equal LM calls.

python benchmarks/fewshot.py --tasks mr trec agnews sst5 --data-dir DATA --seeds 0 1 2 3 4
python benchmarks/fewshot.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 8 ...

The sides begin with the same program without demos and the same labelled examples, and meet the same held-out ones:

labelled               LabeledFewShot: demos drawn at random, no call
random search          BootstrapFewShotWithRandomSearch with `--candidates` programs
half of it             the same with the number that takes about half of the calls
half of it, PLReorder  the demos of that in a better order, with the calls that are left
labelled, PLReorder    the labelled demos in a better order
calibrated             BatchCalibration of the program without demos: 64 calls
labelled, calibrated   the same of the labelled demos
TPE                    optuna's tree-structured Parzen estimator over "demo at place i", a minibatch each trial
PLFewShot              with log-probabilities where the endpoint gives them
PLFewShot scores       without them
PLFewShot calibrated   with `calibrate=True`

A side has as many calls as the random search took, or the number after @: "PLFewShot@300". What is done is kept in
`--out` by everything that decides it, so that the same command goes on where it was stopped; tables come from there.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import optuna
from dspy.utils.callback import BaseCallback
from kept import folder_of, kept

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from paper.held_out import HeldOut
from paper.model import LOCAL, ServedModel
from paper.tasks import CLASSIFICATION
from plr_dspy import BatchCalibration, PLFewShot, PLReorder
from plr_dspy.statistics.comparisons import mean_interval, paired_interval
from quickstart import BUNDLED, Data, load_data, mean

SEARCH, HALF, LABELLED = "random search", "half of it", "labelled"
MINIBATCH = 25
"""Examples of a trial of the tree-structured Parzen estimator."""


class Calls(BaseCallback):  # type: ignore[misc]
    """Counts LM calls, those that DSPy's cache answers among them: every side would have to pay for them."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        with self._lock:
            self.count += 1


@dataclass(frozen=True)
class Side:
    """A program's demos, the LM calls that it took, and its scores on the held-out examples."""

    demos: list[dict[str, Any]]
    calls: int
    scores: list[float]

    @property
    def accuracy(self) -> float:
        return mean(self.scores)


class Draw:
    """One draw of examples, and what every side makes of it."""

    def __init__(self, task: str, data: Data, seed: int, args: argparse.Namespace) -> None:
        rng = random.Random(seed)
        self.labelled = rng.sample(data.train, args.pool)
        self.test = rng.sample(data.test, min(args.test, len(data.test)))
        self._task, self._data, self._seed, self._args = task, data, seed, args
        self._known: dict[str, Side] = {}

    def side(self, name: str) -> Side:
        """Made, or read where it was made before."""
        if name not in self._known:
            self._known[name] = side = Side(**kept(self._folder(name), partial(self._made, name)))
            print(f"{self._task}, seed {self._seed}: {name} {side.accuracy:.3f}, {side.calls:,}", flush=True)
        return self._known[name]

    def _made(self, name: str) -> Side:
        """Make a side, and score it."""
        how, _, calls = name.partition("@")
        kind = KINDS[how]
        budget = 0 if not kind.budget else int(calls) if calls else self.side(SEARCH).calls
        program, taken = kind.make(self, budget)
        demos = [dict(demo) for demo in program.predictors()[0].demos]
        return Side(demos, taken, self._scores(program))

    def _folder(self, name: str) -> Path:
        """What is kept of a side, or of an optimizer's calls."""
        examples = [self.labelled, self.test]
        return folder_of(
            self._args, script=__file__, task=self._task, seed=self._seed, side=name, examples=examples
        )

    def student(self, side: str | None = None) -> dspy.Module:
        """The program without demos, or with those of a side."""
        program = dspy.Predict(self._data.task.signature)
        program.demos = [dspy.Example(**demo) for demo in self.side(side).demos] if side else []
        return program

    def labelled_demos(self, _: int) -> tuple[dspy.Module, int]:
        """Demos drawn at random."""
        optimizer = dspy.LabeledFewShot(k=self._args.demos)
        return optimizer.compile(self.student(), trainset=self.labelled), 0

    def searched(self, _: int, *, half: bool = False) -> tuple[dspy.Module, int]:
        """Demos come from one half of the examples and are chosen on the other."""
        middle, calls, candidates = len(self.labelled) // 2, Calls(), self._args.candidates
        if half:  # three more are always scored: no demos, labelled ones, and unshuffled ones
            candidates = (candidates + 3) // 2 - 3
        with redirect_stdout(sys.stderr), dspy.context(callbacks=[calls]):  # it prints every score
            optimizer = dspy.BootstrapFewShotWithRandomSearch(
                metric=self._data.task.metric(),
                max_bootstrapped_demos=self._args.demos // 2,
                max_labeled_demos=self._args.demos,
                num_candidate_programs=candidates,
                num_threads=self._args.threads,
                max_errors=10 * len(self.labelled),  # answers that cannot be parsed are wrong ones
            )
            trainset, valset = self.labelled[:middle], self.labelled[middle:]
            program = optimizer.compile(self.student(), trainset=trainset, valset=valset)
        return program, calls.count

    def reordered(self, calls: int, *, base: str) -> tuple[dspy.Module, int]:
        """The demos of another side, in the order that PLReorder chooses."""
        spent = self.side(base).calls
        optimizer = PLReorder(
            self._data.task.metric(), max_metric_calls=calls - spent, **self._options(f"{base}, PLReorder")
        )
        program = optimizer.compile(self.student(base), trainset=self.labelled)
        return program, spent + optimizer.report.program_calls["total"]

    def calibrated(self, _: int, *, base: str | None = None) -> tuple[dspy.Module, int]:
        """The program without demos, or with those of another side, calibrated."""
        optimizer = BatchCalibration(
            num_threads=self._args.threads, seed=self._seed, display_progress=False, num_inputs=64
        )
        program = optimizer.compile(self.student(base), trainset=self.labelled)
        return program, program.calibration.num_inputs

    def few_shot(self, calls: int, **options: Any) -> tuple[dspy.Module, int]:
        """What PLFewShot chooses."""
        optimizer = PLFewShot(
            self._data.task.metric(),
            max_demos=self._args.demos,
            max_metric_calls=calls,
            **self._options(f"PLFewShot@{calls}{''.join(options)}"),
            **options,
        )
        program = optimizer.compile(self.student(), trainset=self.labelled)
        return program, optimizer.report.program_calls["total"]

    def estimated(self, calls: int) -> tuple[dspy.Module, int]:
        """The best trial of an estimator over the number of demos and the demo at each place.

        Demos come from one half of the examples, and each trial is scored on a minibatch of the other.
        """
        rng, middle = random.Random(self._seed), len(self.labelled) // 2
        pool, scoring = self.labelled[:middle], self.labelled[middle:]

        def objective(trial: optuna.Trial) -> float:
            shown = trial.suggest_int("number", 2, self._args.demos)
            program = self.student()
            program.demos = [
                pool[trial.suggest_categorical(f"demo {place}", range(middle))] for place in range(shown)
            ]
            trial.set_user_attr("demos", program.demos)
            return mean(self._scores(program, rng.sample(scoring, min(MINIBATCH, len(scoring)))))

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=self._seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        trials = calls // min(MINIBATCH, len(scoring))
        study.optimize(objective, n_trials=trials)
        program = self.student()
        program.demos = study.best_trial.user_attrs["demos"]
        return program, trials * min(MINIBATCH, len(scoring))

    def _options(self, name: str) -> dict[str, Any]:
        return {
            "num_threads": self._args.threads,
            "seed": self._seed,
            "log_dir": self._folder(name) / "log",
            "display_progress": False,
        }

    def _scores(self, program: dspy.Module, examples: list[dspy.Example] | None = None) -> list[float]:
        metric, threads = self._data.task.metric(), self._args.threads
        examples = self.test if examples is None else examples
        return HeldOut(program, metric=metric, examples=examples, num_threads=threads).scores()


@dataclass(frozen=True)
class Kind:
    """How a side is made; `budget` where it takes a number of calls."""

    make: Callable[[Draw, int], tuple[dspy.Module, int]]
    budget: bool = True


KINDS: Mapping[str, Kind] = {
    LABELLED: Kind(Draw.labelled_demos, budget=False),
    SEARCH: Kind(Draw.searched, budget=False),
    HALF: Kind(partial(Draw.searched, half=True), budget=False),
    f"{HALF}, PLReorder": Kind(partial(Draw.reordered, base=HALF)),
    f"{LABELLED}, PLReorder": Kind(partial(Draw.reordered, base=LABELLED)),
    "calibrated": Kind(Draw.calibrated, budget=False),
    f"{LABELLED}, calibrated": Kind(partial(Draw.calibrated, base=LABELLED), budget=False),
    "TPE": Kind(Draw.estimated),
    "PLFewShot": Kind(Draw.few_shot),
    "PLFewShot scores": Kind(partial(Draw.few_shot, signal="score")),
    "PLFewShot calibrated": Kind(partial(Draw.few_shot, calibrate=True)),
}


def table(draws: Mapping[str, list[dict[str, Side]]]) -> str:
    """Lines of Markdown: accuracy on each task, calls, and the difference to the first side and the random search."""
    sides = list(next(iter(draws.values()))[0])
    pairs = [each for found in draws.values() for each in found]
    base = SEARCH if SEARCH in sides else sides[0]
    head = ["", *draws, "mean", "calls", f"less {base}, 95 % over draws", "95 % over examples"]
    rows = [head, ["---"] * len(head)]
    for side in sides:
        by_task = [mean([each[side].accuracy for each in found]) for found in draws.values()]
        calls = mean([float(each[side].calls) for each in pairs])
        gains = [[a - b for a, b in zip(each[side].scores, each[base].scores, strict=True)] for each in pairs]
        less = ("", "") if side == base else _gain(gains)
        overall = mean([each[side].accuracy for each in pairs])
        rows.append([side, *(f"{value:.3f}" for value in (*by_task, overall)), f"{calls:,.0f}", *less])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _gain(gains: list[list[float]]) -> tuple[str, str]:
    """The mean gain with its interval over draws, and the interval over all examples."""
    by_draw = [mean(draw) for draw in gains]
    examples = "[{:+.3f}, {:+.3f}]".format(*paired_interval(list(itertools.chain(*gains))))
    if len(by_draw) < 2:
        return f"{by_draw[0]:+.3f}", examples
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(mean(by_draw), *mean_interval(by_draw)), examples


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=[BUNDLED], choices=[BUNDLED, *CLASSIFICATION])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    sides = [*KINDS, "PLFewShot@300"]
    parser.add_argument("--sides", nargs="+", default=sides, metavar="SIDE", help="as above")
    parser.add_argument("--demos", type=int, default=8, help="at most; half of them bootstrapped")
    parser.add_argument("--pool", type=int, default=100, help="labelled examples")
    parser.add_argument("--candidates", type=int, default=16, help="of the random search alone")
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--model", default=LOCAL, help="litellm name of a model with a completions endpoint")
    parser.add_argument("--api-base", nargs="+", default=[], metavar="URL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/fewshot"))
    args = parser.parse_args()
    if args.candidates < 6:
        parser.error("--candidates must be at least 6, so that half of the search has some")
    if unknown := [side for side in args.sides if side.partition("@")[0] not in KINDS]:
        parser.error(f"--sides must be of {list(KINDS)}; got {unknown}")
    draws: dict[str, list[dict[str, Side]]] = {task: [] for task in args.tasks}
    served_model = ServedModel(args.model, tuple(args.api_base), cache=True)
    with served_model.open(format="plain") as make_lm:
        for seed, task in itertools.product(args.seeds, args.tasks):
            data = load_data(task, args.data_dir)
            lm, adapter = make_lm(data.task.max_tokens("plain")), data.task.adapter("plain")
            with dspy.context(lm=lm, adapter=adapter):
                draw = Draw(task, data, seed, args)
                draws[task].append({side: draw.side(side) for side in args.sides})
    print(f"\n{len(args.seeds)} draw(s) a task, {args.test} held-out examples each\n\n{table(draws)}")


if __name__ == "__main__":
    main()

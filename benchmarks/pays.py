"""Does it pay? At equal LM calls: a random search over demos alone, against half of it and then PLReorder.

python benchmarks/pays.py --tasks mr subj --data-dir DATA --seeds 0 1 2 3 4
python benchmarks/pays.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 12 ...

For each task and seed, BootstrapFewShotWithRandomSearch chooses demos with all its candidates, and with the number that
takes about half of those calls. PLReorder orders the demos of the second with the calls that are left. With
`--from-labelled`, it also orders labelled demos drawn at random, with all of the calls. All have the same labelled
examples, and the same held-out ones. What is done is kept in `--out`, so that what was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from quickstart import BUNDLED, Data, load_data, mean

from plr_dspy import PLReorder
from plr_dspy.experiments.names import CLASSIFICATION, LOCAL
from plr_dspy.experiments.runs.held_out import HeldOut
from plr_dspy.experiments.runs.served_model import ServedModel
from plr_dspy.statistics.comparisons import mean_interval, paired_interval

SEARCH, HALF, BOTH = "random search", "half of it", "half of it, PLReorder"
LABELLED, ORDERED = "labelled demos", "labelled demos, PLReorder"
SIDES, MORE_SIDES = (SEARCH, HALF, BOTH), (LABELLED, ORDERED)


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
    """A program's state, the LM calls that it took, and its scores on the held-out examples."""

    program: dict[str, Any]
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
        self._data, self._seed, self._args = data, seed, args
        self._folder = args.out / task / f"seed{seed}"

    def sides(self) -> dict[str, Side]:
        """Made, or read where they were made before."""
        sides: dict[str, Side] = {}
        for name in SIDES + MORE_SIDES * self._args.from_labelled:
            path = self._folder / f"{name}.json"
            if not path.exists():
                program, calls = self._made(name, sides)
                self._folder.mkdir(parents=True, exist_ok=True)
                side = Side(program.dump_state(), calls, self._scores(program))
                path.write_text(json.dumps(asdict(side)))
            sides[name] = Side(**json.loads(path.read_text()))
        return sides

    def _made(self, name: str, sides: dict[str, Side]) -> tuple[dspy.Module, int]:
        """The program of a side, and its LM calls."""
        candidates = self._args.candidates
        if name == SEARCH:
            return self._searched(candidates)
        if name == HALF:  # three more are always scored: no demos, labelled ones, and unshuffled ones
            return self._searched((candidates + 3) // 2 - 3)
        if name == LABELLED:
            student = dspy.Predict(self._data.task.signature)
            return dspy.LabeledFewShot(k=self._args.demos).compile(student, trainset=self.labelled), 0
        return self._reordered(name, sides[HALF if name == BOTH else LABELLED], sides[SEARCH].calls)

    def _searched(self, candidates: int) -> tuple[dspy.Module, int]:
        """Demos come from one half of the examples and are chosen on the other."""
        half, calls = len(self.labelled) // 2, Calls()
        with redirect_stdout(sys.stderr), dspy.context(callbacks=[calls]):  # it prints every score
            optimizer = dspy.BootstrapFewShotWithRandomSearch(
                metric=self._data.task.metric(),
                max_bootstrapped_demos=self._args.demos // 2,
                max_labeled_demos=self._args.demos,
                num_candidate_programs=candidates,
                num_threads=self._args.threads,
                max_errors=10 * len(self.labelled),  # answers that cannot be parsed are wrong ones
            )
            student = dspy.Predict(self._data.task.signature)
            program = optimizer.compile(student, trainset=self.labelled[:half], valset=self.labelled[half:])
        return program, calls.count

    def _reordered(self, name: str, side: Side, max_calls: int) -> tuple[dspy.Module, int]:
        program = dspy.Predict(self._data.task.signature)
        program.load_state(side.program)
        optimizer = PLReorder(
            self._data.task.metric(),
            max_metric_calls=max_calls - side.calls,
            num_threads=self._args.threads,
            seed=self._seed,
            log_dir=self._folder / name,
            display_progress=False,
        )
        program = optimizer.compile(program, trainset=self.labelled)
        return program, side.calls + optimizer.report.program_calls["total"]

    def _scores(self, program: dspy.Module) -> list[float]:
        metric, threads = self._data.task.metric(), self._args.threads
        return HeldOut(program, metric=metric, examples=self.test, num_threads=threads).scores()


def table(draws: dict[int, dict[str, Side]]) -> str:
    """Lines of Markdown: held-out accuracy and LM calls by seed and side, and the mean."""
    names = list(next(iter(draws.values())))
    rows = [["seed", *names], ["---"] * (1 + len(names))]
    for seed, sides in draws.items():
        rows.append([str(seed), *(f"{side.accuracy:.3f} ({side.calls:,})" for side in sides.values())])
    means = [mean([sides[name].accuracy for sides in draws.values()]) for name in names]
    rows.append(["mean", *(f"{value:.3f}" for value in means)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def difference(draws: dict[int, dict[str, Side]], name: str, base: str) -> str:
    """The mean over seeds, with intervals over seeds and over examples."""
    gains = [
        [a - b for a, b in zip(sides[name].scores, sides[base].scores, strict=True)]
        for sides in draws.values()
    ]
    by_seed, pooled = [mean(seed) for seed in gains], [gain for seed in gains for gain in seed]
    over_seeds = "[{:+.3f}, {:+.3f}]".format(*mean_interval(by_seed)) if len(by_seed) > 1 else "-"
    over_examples = "[{:+.3f}, {:+.3f}]".format(*paired_interval(pooled))
    return f"| {name} - {base} | {mean(by_seed):+.3f} | {over_seeds} | {over_examples} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=[BUNDLED], choices=[BUNDLED, *CLASSIFICATION])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--demos", type=int, default=8, help="at most; half of them bootstrapped")
    parser.add_argument("--pool", type=int, default=200, help="labelled examples")
    parser.add_argument("--candidates", type=int, default=16, help="of the random search alone")
    parser.add_argument("--test", type=int, default=300)
    parser.add_argument("--from-labelled", action="store_true", help="PLReorder alone too")
    parser.add_argument("--model", default=LOCAL, help="litellm name of a model with a completions endpoint")
    parser.add_argument("--api-base", nargs="+", default=[], metavar="URL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/pays"))
    args = parser.parse_args()
    if args.candidates < 6:
        parser.error("--candidates must be at least 6, so that half of the search has some")
    served_model = ServedModel(args.model, tuple(args.api_base), cache=True)
    with served_model.open(format="plain") as make_lm:
        for task in args.tasks:
            data = load_data(task, args.data_dir)
            draws = {}
            lm, adapter = make_lm(data.task.max_tokens("plain")), data.task.adapter("plain")
            with dspy.context(lm=lm, adapter=adapter):
                for seed in args.seeds:
                    draws[seed] = Draw(task, data, seed, args).sides()
                    print(f"\n{task}: held-out accuracy (LM calls)\n\n{table(draws)}", flush=True)
            print("\n| difference | mean | 95 % over seeds | 95 % over examples |\n|---|---|---|---|")
            pairs = [(BOTH, SEARCH), (BOTH, HALF)]
            if args.from_labelled:
                pairs += [(ORDERED, SEARCH), (ORDERED, LABELLED)]
            for name, base in pairs:
                print(difference(draws, name, base))


if __name__ == "__main__":
    main()

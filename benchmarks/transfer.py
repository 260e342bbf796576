"""Rules for found demos that are learnt on some tasks, and used on another one without a call: one task is left out.

python benchmarks/transfer.py --data-dir DATA --tasks trec agnews mr subj sst5    # the local model, about an hour

On each task, `--draws` choices of `--demos` among the 16 labelled examples most like each other are shown to the model,
and the coefficients of the features are fitted to those that made the right label likelier than the mean choice did.
Columns are held-out accuracies: a vote of as many neighbours without a model; of the nearest demos the nearest last,
the nearest first, in random order, and in the order that the coefficients of the other tasks give; and what these, and
those of the task itself, choose and order. Differences are to the nearest last, with intervals over examples; the last
line is of all tasks, with intervals over tasks. Calls are cached by DSPy: what was stopped goes on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dspy
import numpy as np
from command import head, options, row, served, with_interval

from paper.model import LOCAL
from paper.tasks import CLASSIFICATION
from plr_dspy.labels.batch_calibration import read_replies
from plr_dspy.labels.calibrated_program import calibrated_output
from plr_dspy.plackett_luce.covariates import fit
from plr_dspy.programs.splits import source_of
from plr_dspy.retrieval.predict import retrieve_in
from plr_dspy.retrieval.rule import FEATURES, Pool, Rule
from plr_dspy.retrieval.slots import PENALTY
from quickstart import load_data

CANDIDATES = 16
PROPOSAL = {"similarity": 2.0, "rank": 1.0}
"""The coefficients that choices are drawn with: near ones, in all orders."""

Choices = Sequence[Sequence[int]]
"""Demos of the pool for each example, in the order of the prompt."""


@dataclass(frozen=True)
class Given:
    """Stands where a `Retrieval` does: the demos of each example, by its inputs."""

    pool: Pool
    by_inputs: dict[str, list[Any]]

    def demos(self, inputs: Any) -> list[Any]:
        return self.by_inputs[source_of(inputs)]


class Task:
    """The examples of a task, the model's answers to them, and what was learnt from those."""

    def __init__(self, name: str, args: Any) -> None:
        data, rng = load_data(name, args.data_dir), random.Random(args.seed)
        self.name, self.data, self.args = name, data, args
        self.labelled = rng.sample(data.train, args.pool)
        self.test = rng.sample(data.test, min(args.test, len(data.test)))
        self.student = dspy.Predict(data.task.signature)
        self.output = calibrated_output(self.student)
        self.pool = Pool(self.student, self.labelled, [source_of(each.inputs()) for each in self.labelled])
        self.coefficients = self._learnt()

    def told(self, examples: Sequence[dspy.Example], choices: Choices) -> tuple[np.ndarray, np.ndarray]:
        """How likely the right label of each example is, ``[E]``, and whether it is the likeliest."""
        shown = {
            source_of(example.inputs()): [self.pool.demos[i] for i in chosen]
            for example, chosen in zip(examples, choices, strict=True)
        }
        program = retrieve_in(self.student.deepcopy(), {"self": Given(self.pool, shown)})  # type: ignore[dict-item]
        with served(self.args, self.data.task, cache=True):
            replies = read_replies(program, list(examples), self.output, num_threads=self.args.threads)
        right, rows = self.output.numbers(examples), np.arange(len(replies.inputs))
        likely, correct = np.zeros(len(examples)), np.zeros(len(examples))
        likely[replies.inputs] = np.exp(replies.log_probabilities[rows, right[replies.inputs]])
        correct[replies.inputs] = replies.log_probabilities.argmax(axis=1) == right[replies.inputs]
        return likely, correct

    def _learnt(self) -> np.ndarray:
        """Coefficients of the choices that made right labels likely, of examples left out of their own pool."""
        rng = np.random.default_rng(self.args.seed)
        proposal = Rule(coefficients=PROPOSAL)
        found = [self.pool.features(each.inputs(), CANDIDATES, without=each.inputs()) for each in self.labelled]
        features, rankings, likely = [], [], []
        for _ in range(self.args.draws):
            drawn = [proposal.chosen(of_each, self.args.demos, rng=rng) for _, of_each in found]
            nearest_last = [[items[i] for i in chosen[::-1]] for (items, _), chosen in zip(found, drawn, strict=True)]
            likely.append(self.told(self.labelled, nearest_last)[0])
            features += [of_each for _, of_each in found]
            rankings += drawn
        weights = np.maximum(0.0, np.array(likely) - np.mean(likely, axis=0)).ravel()
        return fit(features, rankings, weights, l2=PENALTY)

    def scores(self, others: np.ndarray) -> dict[str, np.ndarray]:
        """Whether each held-out example is answered right, ``[E]``, by each way to find demos."""
        rng, nearest = np.random.default_rng(self.args.seed), Rule(num_demos=self.args.demos)
        of_same = replace(nearest, coefficients=_named(others), num_candidates=self.args.demos)
        learnt = replace(nearest, num_candidates=CANDIDATES)
        near = [self.pool.shown(each.inputs(), nearest) for each in self.test]
        ways: dict[str, Choices] = {
            "nearest last": near,
            "nearest first": [each[::-1] for each in near],
            "random order": [rng.permutation(each).tolist() for each in near],
        }
        for name, rule in {
            "order of other tasks": of_same,
            "choice of other tasks": replace(learnt, coefficients=_named(others)),
            "choice of this task": replace(learnt, coefficients=_named(self.coefficients)),
        }.items():
            ways[name] = [self.pool.shown(each.inputs(), rule) for each in self.test]
        name = self.output.name
        votes = [self.pool.vote(each.inputs(), self.args.demos)[name] == each[name] for each in self.test]
        return {"vote": np.array(votes, float)} | {way: self.told(self.test, each)[1] for way, each in ways.items()}


def _named(coefficients: np.ndarray) -> dict[str, float]:
    return dict(zip(FEATURES, np.round(coefficients, 3).tolist(), strict=True))


def main() -> None:
    args = options(
        __doc__ or "",
        among={"tasks": CLASSIFICATION},
        tasks=["trec", "mr"],
        data_dir=Path,
        demos=4,
        pool=100,
        draws=8,
        test=200,
        seed=0,
        model=LOCAL,
        api_base=[str],
        threads=2,
    )
    tasks = []
    for name in args.tasks:
        tasks.append(Task(name, args))
        print(f"{name}: {_named(tasks[-1].coefficients)}", flush=True)
    differences: dict[str, list[float]] = {}
    for task in tasks:
        others = np.mean([each.coefficients for each in tasks if each is not task], axis=0)
        found = task.scores(others)
        if not differences:
            print(f"\n{head('', *found)}")
        cells = []
        for way, correct in found.items():
            gain = correct - found["nearest last"]
            cells.append(f"{correct.mean():.3f}" + f" ({with_interval(gain)})" * (way != "nearest last"))
            differences.setdefault(way, []).append(float(gain.mean()))
        print(row(task.name, *cells), flush=True)
    if len(tasks) > 1:
        print(row("all", *map(with_interval, differences.values())))


if __name__ == "__main__":
    main()

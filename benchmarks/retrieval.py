"""Simulated worlds in which demos that are like the input help, hurt, do not matter, or have misleading labels.

python benchmarks/retrieval.py                               # all worlds, 300 and 1,000 calls, 8 seeds, some minutes
python benchmarks/retrieval.py --worlds nothing --seeds 0 1 2 3 --calls 100 --pool 40

A model is simulated: what it answers is decided by the prompt. Each demo has a quality and a leaning to a label of its
own, which count the more the nearer it stands to the question; a demo that shares words with the input moves the answer
towards the label that it shows; and each prompt has noise. Lines have the held-out accuracy of what `PLFewShot` returns
with fixed demos, with demos found for each input, and with both competing, that of the nearest demos without a call,
the share of compiles that call it better with a probability of .9 or more, and the gain that "auto" promises.
"""

from __future__ import annotations

import itertools
import logging
import zlib
from typing import Literal

import dspy
import numpy as np
import pandas as pd
from command import head, options, processes, row, with_interval
from landscapes import Landscape, Order
from replay import metric, replaying
from scipy.special import log_softmax

from plr_dspy import PLFewShot
from plr_dspy.report.text import MIN_WIN_PROBABILITY

LABELS = ("red", "green", "blue")
NUM_HELD_OUT = 400
WORLDS = {  # what similarity does, how often words tell the label, qualities and leanings of demos, noise of a prompt
    "helps": (3.0, 0.9, 0.3, 0.3, 1.0),
    "hurts": (-3.0, 0.9, 0.3, 0.3, 1.0),
    "does not matter": (0.0, 0.9, 0.5, 0.5, 1.0),
    "misleads": (3.0, 0.0, 0.5, 0.3, 1.0),
    "nothing": (0.0, 0.9, 0.0, 0.0, 2.0),
}


class World(Landscape):
    """Any of the examples may be shown as demos, and what a demo does differs by the words that it shares with each."""

    def __init__(self, name: str, seed: int, pool: int) -> None:
        self.similarity, agree, quality, leaning, self.prompt_noise = WORLDS[name]
        self.seed, number = seed, pool + NUM_HELD_OUT
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        topics = rng.integers(3, size=number)
        agrees, others = rng.random(number) < agree, rng.integers(1, 3, size=number)
        self.labels = np.where(agrees, topics, (topics + others) % 3)
        self.words = [
            {f"t{topic}w{word}" for word in rng.integers(25, size=4)} | {f"w{w}" for w in rng.integers(99, size=4)}
            for topic in topics
        ]
        self.qualities = quality * rng.normal(size=number)
        self.leanings = leaning * rng.normal(size=(number, 3))
        self.easy = rng.normal(size=number)
        self.num_demos = self.num_examples = number
        self.examples = [
            dspy.Example(text=f"n{i} {' '.join(sorted(words))}", label=LABELS[label]).with_inputs("text")
            for i, (words, label) in enumerate(zip(self.words, self.labels, strict=True))
        ]

    def told(self, order: Order, example: int) -> np.ndarray:
        right, near = self.labels[example], self.similarity / 4
        rng = np.random.default_rng([self.seed, example, zlib.crc32(repr(list(order)).encode())])
        logits = self.prompt_noise * rng.normal(size=len(LABELS))
        logits[right] += 0.5 + self.easy[example]
        for place, demo in enumerate(reversed(order)):
            weight = 0.8**place
            logits += weight * self.leanings[demo]
            logits[right] += weight * self.qualities[demo]
            logits[self.labels[demo]] += weight * near * len(self.words[example] & self.words[demo])
        told: np.ndarray = log_softmax(logits)
        return told

    def log_probabilities(self, order: Order) -> np.ndarray:
        return np.stack([self.told(order, example) for example in range(self.num_examples)])


def compiled(task: tuple[str, int, int, int]) -> dict[str, float]:
    """What each way to show demos comes to in one world: held-out accuracies, and what is claimed and promised."""
    name, seed, pool, calls = task
    world = World(name, seed, pool)
    signature = dspy.Signature("text -> label").with_updated_fields("label", type_=Literal[LABELS])
    student = dspy.Predict(signature)

    def held_out(program: dspy.Module) -> float:
        return float(np.mean([metric(each, program(text=each.text)) for each in world.examples[pool:]]))

    with replaying(world, LABELS):
        found = {"student": held_out(student)}
        for demos, budget in (("fixed", calls), ("retrieved", calls), ("auto", calls), ("retrieved", 0)):
            common = {"num_threads": 1, "seed": seed, "display_progress": False, "signal": "score"}
            optimizer = PLFewShot(metric, demos=demos, max_metric_calls=budget, **common)
            after = held_out(optimizer.compile(student, trainset=world.examples[:pool]))
            found[demos if budget else "nearest"] = after
            if (comparison := optimizer.report.comparison) is not None:
                sure = after != found["student"] and comparison.probability >= MIN_WIN_PROBABILITY
                found |= {f"{demos} claims": float(sure), f"{demos} promised": comparison.expected_gain}
                found[f"{demos} gained"] = after - found["student"]
    return found


def main() -> None:
    """Print a line for each world and number of calls."""
    args = options(
        __doc__ or "",
        among={"worlds": list(WORLDS)},
        worlds=list(WORLDS),
        seeds=list(range(8)),
        calls=[300, 1_000],
        pool=100,
        jobs=1,
    )
    logging.disable(logging.WARNING)
    ways = ["student", "fixed", "retrieved", "nearest", "auto"]
    claims = [f"{way} claims" for way in ("fixed", "retrieved", "auto")]
    gains = ["auto promised", "auto gained"]
    print(head("world, calls", *ways, "auto less the better", "claims", "auto promised", "gained"))
    with processes(args.jobs) as mapped:
        for name, calls in itertools.product(args.worlds, args.calls):
            tasks = [(name, seed, args.pool, calls) for seed in args.seeds]
            found = pd.DataFrame(mapped(compiled, tasks), columns=[*ways, *claims, *gains]).fillna(0.0)
            means = found.mean()
            behind = found["auto"] - found[["fixed", "retrieved"]].max(axis=1)
            cells = [*(f"{means[way]:.3f}" for way in ways), with_interval(behind)]
            cells += [", ".join(f"{100 * means[each]:.0f} %" for each in claims)]
            print(row(f"{name}, {calls}", *cells, *(f"{means[each]:+.3f}" for each in gains)), flush=True)


if __name__ == "__main__":
    main()

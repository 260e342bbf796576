"""Orderings with known scores, so that tests need no program or model."""

import math
import zlib

import numpy as np

from plr_dspy import OrderingSpace
from plr_dspy.scoring.budget import Budget
from plr_dspy.scoring.run_log import FAILED, CallRecord, RunLog

ORDERINGS = list(OrderingSpace.of_sizes(4).enumerate())


class TablePayer:
    """A payer that takes scores from a table. NaN marks a failed call."""

    def __init__(self, table, log=None):
        self.log = log or RunLog()
        self.table = table
        self.paid = []
        self.budget = Budget(self.log)
        self.most = math.inf

    def fingerprint(self, ordering, example):
        return str(ORDERINGS.index(ordering))

    def pay(self, cells):
        for fingerprint, example in cells:
            if len(self.paid) >= self.most:
                return
            self.paid.append((int(fingerprint), example))
            score = float(self.table[int(fingerprint), example])
            failed = CallRecord(None, FAILED, "TimeoutError", "late")
            record = failed if np.isnan(score) else CallRecord(score)
            self.log.add((fingerprint, example), record, {})


def table(*, seed=0, num_examples=40, broken=()):
    """Return scores of 0 and 1. Their expected means increase from the first ordering to the last."""
    chances = np.linspace(0.1, 0.9, len(ORDERINGS))[:, None]
    draws = np.random.default_rng(seed).random((len(ORDERINGS), num_examples))
    scores = (draws < chances).astype(float)
    scores[:, list(broken)] = np.nan
    return scores


class World:
    """Scores that are linear in the positions of items, plus example effects and noise.

    A new ordering is scored on 8 examples, and a known ordering on 16 additional examples.
    """

    def __init__(self, *sizes, seed=0, num_examples=40):
        rng = np.random.default_rng(seed)
        self.space = OrderingSpace.of_sizes(*sizes)
        self.tables = [rng.normal(size=(size, size)) / size**0.5 for size in sizes]
        self.easiness = rng.normal(size=num_examples)
        self.known = {}
        self.calls = 0
        self.seed = seed

    def truth(self, ordering):
        total = 0.0
        for table, block in zip(self.tables, ordering, strict=True):
            total += float(table[list(block), range(len(block))].sum())
        return total

    def height(self, ordering):
        truths = [self.truth(o) for o in random_orderings(self.space, 200)]
        return (self.truth(ordering) - np.mean(truths)) / np.std(truths)

    def __call__(self, orderings):
        for ordering in orderings:
            known = self.known.setdefault(ordering, {})
            turn = np.roll(np.arange(len(self.easiness)), -8 * len(self.known)).tolist()
            more = [example for example in turn if example not in known][: 16 if known else 8]
            known |= {example: self._score(ordering, example) for example in more}
            self.calls += len(more)
        return self.known

    def _score(self, ordering, example):
        number = zlib.crc32(repr(ordering).encode())
        noise = np.random.default_rng([self.seed, example, number]).normal()
        return float(0.1 * (self.truth(ordering) + 4 * self.easiness[example] + 2 * noise))


def correlation(first, second):
    return np.corrcoef(np.ravel(first), np.ravel(second))[0, 1]


def random_orderings(space, count, seed=0):
    rng = np.random.default_rng(seed)
    orderings = []
    for _ in range(count):
        blocks = [rng.permutation(size).tolist() for size in space.sizes]
        orderings.append(space.canonical(blocks))
    return orderings


def play(search, score, *, rounds=6):
    """Run rounds of `ask()`, scoring and `tell()`, and return the batches from `ask()`."""
    batches = []
    while len(batches) < rounds and [] not in batches:
        batches.append(search.ask())
        if batches[-1]:
            search.tell(batches[-1], score(batches[-1]))
    return batches

"""Draws of a program's answers to examples with each label, from which values of a metric over a set are drawn.

Confusion matrices are drawn in blocks. With 150 labels, all draws together would take 360 MB.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plr_dspy.statistics.arrays import Array

PSEUDO_EXAMPLES = 0.5  # examples added per label, so that no cell of a reference is empty
PSEUDO_PAIRS = 1.0  # pairs of answers added per label, so that a few pairs do not look conclusive
# Maximum number of cells in the confusion matrices that are held in memory at a time.
CELLS_PER_BLOCK = 1_000_000


def wrong_answers(answers: Array, label: int) -> Array:
    """Return the shares of answers among the wrong answers to examples with a label.

    Wrong answers are as frequent as among all answers, ``[..., k + 1]``. If each of them were
    unparsable, it would count against all other labels.
    """
    wrong = answers.copy()
    # Even a program that always gives the right answer can be wrong.
    wrong[..., :-1] += PSEUDO_EXAMPLES / wrong.shape[-1]
    wrong[..., label] = 0.0
    return np.asarray(wrong / wrong.sum(axis=-1, keepdims=True))


class DrawnAnswers(NamedTuple):
    """Draws of the shares of answers to examples with one label.

    Attributes:
        columns: The columns of the answers that occurred, ``[c]``.
        means: Draws of the shares of these answers in the calls, ``[draws, c]``.
        shares: Draws of the shares of the calls, of a right and of a wrong artificial answer,
            ``[draws, 3]``.
        wrong: The artificial wrong answer, ``[k + 1]``.
    """

    columns: NDArray[np.int64]
    means: Array
    shares: Array
    wrong: Array

    def rows(self, label: int, block: slice) -> Array:
        """Return the shares of all answers in a block of draws, ``[block, k + 1]``."""
        rows = self.shares[block, [2]] * self.wrong
        rows[:, label] += self.shares[block, 1]
        rows[:, self.columns] += self.shares[block, [0]] * self.means[block]
        return rows


def draw_pairs(
    pairs: Counter[tuple[int, int]], label: int, of_both: Array, rng: np.random.Generator, *, num_draws: int
) -> tuple[NDArray[np.int64], Array]:
    """Draw bootstrap samples of the pairs of answers to examples with a label, with pseudo-pairs.

    Return the number of each pair in each sample, ``[draws, p]``, and the two programs' answers
    in each pair, ``[2, p, k + 1]``.
    """
    is_column = np.eye(len(of_both))
    # Each answer in a pseudo-pair is correct or wrong.
    pseudo_answers = np.array([is_column[label], wrong_answers(of_both, label)])
    extra = np.array([*itertools.product((0, 1), repeat=2)])
    weights = np.concatenate([[*pairs.values()], np.full(len(extra), PSEUDO_PAIRS / len(extra))])
    pair_counts = rng.multinomial(pairs.total(), weights / weights.sum(), size=num_draws)
    columns = np.array([*pairs])
    answers = np.concatenate([is_column[columns], pseudo_answers[extra]])
    return pair_counts, np.moveaxis(answers, 1, 0)


def blocks(num_draws: int, num_labels: int) -> Iterator[slice]:
    """Yield blocks of draws whose confusion matrices together have at most `CELLS_PER_BLOCK` cells."""
    length = max(1, CELLS_PER_BLOCK // (num_labels * (num_labels + 1)))
    for start in range(0, num_draws, length):
        yield slice(start, start + length)


def draw_accuracies(number: int, rng: np.random.Generator) -> Array:
    """Draw accuracies on examples with unseen labels, ``[draws, 1]``. Nothing is known of them."""
    return rng.beta(PSEUDO_EXAMPLES, PSEUDO_EXAMPLES, size=(number, 1))


def add_unseen(counts: Array, totals: Array, unseen: Sequence[int], accuracies: Array) -> None:
    """Add a program's answers to examples with unseen labels, in place.

    A draw has the same accuracy for all of these labels, because a program that never answers one
    of them may never answer another.

    Args:
        counts: The drawn counts of answers, ``[draws, k, k + 1]``.
        totals: The drawn numbers of examples with each label, ``[draws, k]``.
        unseen: The labels without an answered example.
        accuracies: The drawn accuracies on these labels, ``[draws, 1]``.
    """
    answers = counts.sum(axis=1)
    for label in unseen:
        row = (1.0 - accuracies) * wrong_answers(answers, label)
        row[:, [label]] = accuracies
        counts[:, label] = totals[:, [label]] * row

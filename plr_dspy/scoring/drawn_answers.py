"""Random draws of programs' answers, given the correct labels of the examples.

A metric over a set of examples is calculated from these draws.
"""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plr_dspy.statistics.arrays import Array

PSEUDO_EXAMPLES = 0.5  # number of artificial examples per label, so that no count in a reference is 0
# Number of artificial answer pairs per label, so that a few pairs do not look conclusive.
PSEUDO_PAIRS = 1.0


def wrong_answers(answers: Array, label: int) -> Array:
    """Return the assumed distribution of wrong answers to examples labeled `label`, ``[k + 1]``.

    It is proportional to `answers` plus artificial answers, without those that equal `label`.
    Assuming only unparsable answers would be too pessimistic, because F1 counts them against every
    other label.
    """
    wrong = answers.copy()
    # Add artificial answers, because a program without wrong answers so far can still be wrong.
    wrong[:-1] += PSEUDO_EXAMPLES / len(wrong)
    wrong[label] = 0.0
    if not wrong.any():  # There is only one label, so only replies without a label can be wrong.
        wrong[-1] = 1.0
    return np.asarray(wrong / wrong.sum())


def draw_pairs(
    pairs: Counter[tuple[int, int]], label: int, of_both: Array, rng: np.random.Generator, *, num_draws: int
) -> tuple[NDArray[np.int64], Array]:
    """Draw bootstrap samples of the pairs of answers that two programs give to examples labeled `label`.

    Return how often each pair occurs in each sample, ``[draws, p]``, and the two programs' answers
    in each pair, ``[2, p, k + 1]``. The pairs include artificial pairs.
    """
    is_column = np.eye(len(of_both))
    # The artificial pairs are all four combinations of right and wrong answers.
    pseudo_answers = np.array([is_column[label], wrong_answers(of_both, label)])
    extra = np.array([*itertools.product((0, 1), repeat=2)])
    weights = np.concatenate([[*pairs.values()], np.full(len(extra), PSEUDO_PAIRS / len(extra))])
    pair_counts = rng.multinomial(pairs.total(), weights / weights.sum(), size=num_draws)
    columns = np.array([*pairs])
    answers = np.concatenate([is_column[columns], pseudo_answers[extra]])
    return pair_counts, np.moveaxis(answers, 1, 0)


def add_unseen(counts: Array, totals: Array, unseen: Sequence[int], accuracy: float) -> None:
    """Add a program's answers to examples with unseen labels, in place.

    All of these labels have the same accuracy, because a program that never predicts one of them
    may never predict any.

    Args:
        counts: The drawn confusion matrix, ``[k, k + 1]``.
        totals: The drawn numbers of examples with each label, ``[k]``.
        unseen: The labels without an answered example.
        accuracy: The drawn accuracy on these labels.
    """
    answers = counts.sum(axis=0)
    for label in unseen:
        row = (1.0 - accuracy) * wrong_answers(answers, label)
        row[label] = accuracy
        counts[label] = totals[label] * row

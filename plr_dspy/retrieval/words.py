"""Compare texts by their words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from plr_dspy.statistics.arrays import Array

# Scripts written without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
# A word, or a character of a script without spaces.
TOKEN = re.compile(rf"[{WITHOUT_SPACES}]|[^\W{WITHOUT_SPACES}]+")


def word_vectors(texts: Sequence[str]) -> tuple[Any, Callable[[str], Array]]:
    """Return TF-IDF vectors of texts, `[n, d]`, and a function that returns a text's cosines with them, `[n]`.

    The terms are words and pairs of neighbouring words, without regard to case.
    """
    counts = [Counter(_terms(text)) for text in texts]
    num_texts_with = Counter(term for count in counts for term in count)
    columns = {term: column for column, term in enumerate(sorted(num_texts_with))}
    frequencies = np.array([num_texts_with[term] for term in columns])
    # As in scikit-learn, as if one more text had all terms.
    weights = np.log((1 + len(texts)) / (1 + frequencies)) + 1.0
    vectors = _unit_vectors(counts, columns, weights)
    by_word = vectors.T.tocsr()
    rows = {text: row for row, text in enumerate(texts)}

    def cosines(text: str) -> Array:
        row = rows.get(text)
        vector = _unit_vectors([Counter(_terms(text))], columns, weights) if row is None else vectors[row]
        return np.asarray((vector @ by_word).toarray()[0])

    return vectors, cosines


def _terms(text: str) -> list[str]:
    """Return the words of a text, and the pairs of neighbouring words."""
    words = TOKEN.findall(text.lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


def _unit_vectors(counts: Sequence[Counter[str]], columns: dict[str, int], weights: Array) -> Any:
    """Return a sparse matrix of weighted counts, `[n, d]`, with rows of length 1; unknown terms are left out."""
    rows: list[int] = []
    places: list[int] = []
    numbers: list[int] = []
    for row, count in enumerate(counts):
        for term in sorted(count.keys() & columns.keys()):
            rows.append(row)
            places.append(columns[term])
            numbers.append(count[term])
    values = np.array(numbers, dtype=float) * weights[places]
    lengths = np.sqrt(np.bincount(rows, values**2, minlength=len(counts)))
    return sparse.csr_matrix((values / lengths[rows], (rows, places)), shape=(len(counts), len(columns)))

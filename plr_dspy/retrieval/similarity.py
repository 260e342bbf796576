"""How like texts are: by the words that they share, or by a user's embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import dspy
import numpy as np
from dspy.predict.predict import serialize_object
from scipy import sparse

from plr_dspy.statistics.calibration import Array

WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Scripts that are written without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""

TOKEN = rf"[{WITHOUT_SPACES}]|[^\W{WITHOUT_SPACES}]+"
"""A word, or a character of such a script; pairs of these tell words apart in every script."""


def text_of(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    """The text that some fields of a demo or a call are compared by; pictures, sounds and files have none."""
    values = [fields[name] for name in names if fields.get(name) is not None]
    return "\n".join(str(serialize_object(value)) for value in values if not isinstance(value, dspy.Type))


class Similarity(ABC):
    """Compares texts with those of a pool, as vectors of length 1.

    Attributes:
        vectors: Of the texts of the pool, ``[n, d]``.
    """

    vectors: Any

    @abstractmethod
    def to(self, text: str) -> Array:
        """Cosine of a text's vector and of those of the pool, ``[n]``."""

    def among(self, members: Sequence[int]) -> Array:
        """Cosines of the vectors of some texts of the pool, ``[c, c]``."""
        some = self.vectors[list(members)]
        product = some @ some.T
        found: Array = product.toarray() if sparse.issparse(product) else product
        return found


class SharedWords(Similarity):
    """By words and pairs of words, the rarer in the pool the more they count (TF-IDF).

    Args:
        texts: Of the pool.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer  # which takes a second, and loads pandas

        self._vectorizer = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2))
        try:
            self.vectors = self._vectorizer.fit_transform(texts)
        except ValueError:  # There is no word in any of the texts.
            self._vectorizer.fit(["none"])
            self.vectors = self._vectorizer.transform([""] * len(texts))
        self._by_word = self.vectors.T.tocsr()

    def to(self, text: str) -> Array:
        found: Array = (self._vectorizer.transform([text]) @ self._by_word).toarray()[0]
        return found


class Embeddings(Similarity):
    """By the vectors of a `dspy.Embedder`.

    Args:
        texts: Of the pool.
        embedder: Called with all of them at once, unless their vectors are given, and then with each other text.
        vectors: Of the texts, of length 1, where they are known.
    """

    def __init__(self, texts: Sequence[str], embedder: dspy.Embedder, vectors: Any = None) -> None:
        self._embedder = embedder
        # As many decimals as are saved, so that a loaded program finds the same.
        self.vectors: Array = np.round(self._of(texts), 6) if vectors is None else np.asarray(vectors, float)

    def to(self, text: str) -> Array:
        (vector,) = self._of([text], self.vectors.shape[1])
        found: Array = self.vectors @ vector
        return found

    def _of(self, texts: Sequence[str], size: int | None = None) -> Array:
        """Vectors of texts, of length 1 and of this size; a ValueError where the embedder returns something else."""
        returned = self._embedder(list(texts))
        try:
            found = np.asarray(returned, dtype=float)
        except (TypeError, ValueError):
            found = np.empty(0)
        expected = (len(texts), size or found.shape[-1])
        if found.shape != expected or not found.size or not np.isfinite(found).all():
            got = f"an array of shape {found.shape}" if found.size else repr(returned)[:80]
            raise ValueError(
                f"embedder must return a vector of {size or 'some'} finite numbers for each of {len(texts)} texts; got "
                f"{got}{', not all finite,' * bool(found.size and found.shape == expected)} from it: pass another one"
            )
        vectors: Array = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        return vectors

"""Pools of demos that can be searched by similarity to the inputs of a call."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

import dspy
import numpy as np
from pydantic import ConfigDict
from scipy import sparse

from plr_dspy.errors import UserError
from plr_dspy.programs.media import text_without
from plr_dspy.programs.splits import answer_classes, input_key, source_of, value_key
from plr_dspy.report.formats import count
from plr_dspy.statistics.arrays import Array

Fields: TypeAlias = Mapping[str, Any]

# Scripts written without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
TOKEN = rf"[{WITHOUT_SPACES}]|[^\W{WITHOUT_SPACES}]+"  # a word, or one character of a script without spaces

# Maximum number of input embeddings to cache, in addition to the demos' embeddings. A search
# repeats inputs, so the cache saves calls to the embedder.
CACHE_SIZE = 4_096
LABEL_WEIGHT = 0.5  # weight of a label's frequency among the candidates, relative to similarity
REDUNDANCY_WEIGHT = 0.5  # weight of the penalty for similarity to demos already chosen


@dataclass(frozen=True)
class NearestDemos:
    """Settings for retrieving the demos whose inputs are most similar to the inputs of a call.

    Source: J. Liu et al., "What makes good in-context examples for GPT-3?", DeeLIO 2022.

    Attributes:
        num_demos: Maximum number of demos to show.
        prefer: How to choose among the most similar demos, called candidates. "nearest" uses
            similarity alone. "frequent labels" also prefers demos whose labels are frequent among
            the candidates. "unlike each other" also prefers demos that differ from those already
            chosen.
        nearest_last: Whether the best demo comes last, next to the inputs of the call.
        num_candidates: Number of candidates.
        max_tokens: Maximum total number of tokens in the demos of a call. The lowest-ranked
            demos are dropped first. None means no limit.
    """

    # Reject unknown settings: they mean that a later version saved the file.
    __pydantic_config__ = ConfigDict(extra="forbid")

    num_demos: int = 8
    prefer: Literal["nearest", "frequent labels", "unlike each other"] = "nearest"
    nearest_last: bool = True
    num_candidates: int = 32
    max_tokens: int | None = None

    def __str__(self) -> str:
        place = "last" if self.nearest_last else "first"
        text = f"{self.num_demos} demos for each input, the nearest {place}"
        if self.prefer == "frequent labels":
            text += ", with a preference for frequent labels"
        elif self.prefer == "unlike each other":
            text += ", with a preference for demos unlike each other"
        return text


class Pool:
    """The demos that a predictor can retrieve, searchable by similarity to the inputs of a call.

    Args:
        predictor: The predictor whose input fields are compared, and whose output fields
            define the demos' classes.
        demos: The demos to search, as examples or dicts.
        sources: For each demo, the identifier of the program inputs from which the demo was made,
            or an empty string if these inputs are unknown.
        embedder: Embedder for the inputs to compare. None means that words are compared instead.
        vectors: Embeddings of the demos, ``[n, d]``, or None if they are unknown.
        known: A cache that maps texts to embeddings of unit length. It is updated in place.
        tokens: Number of prompt tokens in each demo, ``[n]``, or empty if the numbers are unknown.
    """

    def __init__(
        self,
        predictor: dspy.Predict,
        demos: Sequence[Any],
        sources: Sequence[str],
        *,
        embedder: dspy.Embedder | None = None,
        vectors: Any = None,
        known: dict[str, Array] | None = None,
        tokens: Sequence[int] = (),
    ) -> None:
        self.demos = list(demos)
        self.sources = list(sources)
        self.embedder = embedder
        self.names = list(predictor.signature.input_fields)
        self.outputs = list(predictor.signature.output_fields)
        self.tokens = list(tokens) or [0 for _ in self.demos]
        rows = [dict(demo.items()) for demo in demos]
        self.classes = np.array(answer_classes(rows, self.outputs), dtype=int)
        self._input_keys = [self._input_key(row) for row in rows]
        texts = [_text_of(row, self.names) for row in rows]
        self._known: dict[str, Array] = {} if known is None else known
        if embedder is None:
            self._vectorizer = _fitted_vectorizer(texts)
            self.vectors = self._vectorizer.transform(texts)
            self._vectors_by_word = self.vectors.T.tocsr()
            self._rows = {text: row for row, text in enumerate(texts)}
            self._cosines = self._cosines_by_words
            return
        if vectors is not None:
            self._known.update(zip(texts, np.asarray(vectors, float), strict=True))
        self._size = next(map(len, self._known.values()), None)
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            # Round the embeddings to keep saved programs small. Do this before the first use, because
            # a loaded program would otherwise retrieve other demos.
            self._known.update(zip(new, np.round(self._embed(new), 6), strict=True))
        self.vectors = np.array([self._known[text] for text in texts])
        self._size = self.vectors.shape[1]
        self._max_known = len(self._known) + CACHE_SIZE
        self._cosines = self._cosines_by_embedder

    def vote(self, inputs: Fields, number: int, *, without: Fields | None = None) -> dict[str, Any]:
        """Return the outputs of the class that is most frequent among the `number` nearest demos.

        If several classes are equally frequent, choose the class with the nearest demo. `without` is
        as in `shown()`.
        """
        neighbors, _ = self._nearest(inputs, number, without)
        votes = Counter(self.classes[neighbors].tolist())
        winner = next(i for i in neighbors if votes[int(self.classes[i])] == max(votes.values()))
        return {name: self.demos[winner].get(name) for name in self.outputs}

    def knows(self, inputs: Fields) -> bool:
        """Return whether the inputs can be compared with the demos without calling the embedder."""
        return self.embedder is None or _text_of(inputs, self.names) in self._known

    def shown(self, inputs: Fields, nearest: NearestDemos, *, without: Fields | None = None) -> list[int]:
        """Return the indices of the demos to show for a call's inputs, in prompt order.

        If an example is being scored, pass the program's inputs as `without`. Demos made from this
        example or from a duplicate of it are skipped.
        """
        candidates, similarities = self._nearest(inputs, nearest.num_candidates, without)
        ranked = list(range(len(candidates)))
        if nearest.prefer == "frequent labels":
            classes = self.classes[candidates]
            label_shares = (classes[:, None] == classes).sum(axis=1) / max(1, len(candidates))
            ranked = np.argsort(-similarities - LABEL_WEIGHT * label_shares, kind="stable").tolist()
        elif nearest.prefer == "unlike each other":
            ranked = self._diverse(candidates, similarities, nearest.num_demos)
        best_first = [candidates[place] for place in ranked[: nearest.num_demos]]
        if nearest.max_tokens is not None:
            while sum(self.tokens[demo] for demo in best_first) > nearest.max_tokens:
                best_first.pop()
        if nearest.nearest_last:
            best_first.reverse()
        return best_first

    def _diverse(self, candidates: Sequence[int], similarities: Array, number: int) -> list[int]:
        """Return positions of candidates that are similar to the inputs but unlike each other, best first.

        Source: J. Carbonell and J. Goldstein, "The use of MMR", SIGIR 1998.
        """
        vectors: Any = self.vectors[candidates]
        products = vectors @ vectors.T
        cosines = np.asarray(products.todense() if sparse.issparse(products) else products)
        chosen: list[int] = []
        for _ in range(min(number, len(candidates))):
            scores = similarities.copy()
            if chosen:
                scores -= REDUNDANCY_WEIGHT * cosines[:, chosen].max(axis=1)
            scores[chosen] = -np.inf
            chosen.append(int(scores.argmax()))
        return chosen

    def _nearest(self, inputs: Fields, number: int, without: Fields | None) -> tuple[list[int], Array]:
        """Return the indices of the `number` nearest demos, nearest first, and the demos' similarities."""
        cosines = self._cosines(_text_of(inputs, self.names))
        source = None
        own_key = None
        if without is not None:
            source = source_of(without)
            values = set(map(input_key, without.values()))
            # Skip demos with the same inputs, but only if the program itself got one of these inputs.
            # Inputs that the program computes may be the same for different examples.
            if any(input_key(inputs[name]) in values for name in self.names if name in inputs):
                own_key = self._input_key(inputs)
        best = np.argsort(-cosines, kind="stable")
        allowed = (int(i) for i in best if self.sources[i] != source and self._input_keys[i] != own_key)
        nearest = list(islice(allowed, number))
        return nearest, cosines[nearest]

    def _cosines_by_words(self, text: str) -> Array:
        """Return the cosine similarities of the TF-IDF vector of `text` to the demos' vectors."""
        row = self._rows.get(text)
        vector = self._vectorizer.transform([text]) if row is None else self.vectors[row]
        return np.asarray((vector @ self._vectors_by_word).toarray()[0])

    def _cosines_by_embedder(self, text: str) -> Array:
        vector = self._known.get(text)
        if vector is None:
            (vector,) = self._embed([text])
            if len(self._known) < self._max_known:
                self._known[text] = vector
        return np.asarray(self.vectors @ vector)

    def _embed(self, texts: Sequence[str]) -> Array:
        """Return the embeddings of `texts`, scaled to unit length."""
        vectors = np.asarray(self.embedder(list(texts)), dtype=float)  # type: ignore[misc, type-var]
        expected = (len(texts), self._size or vectors.size // len(texts))
        is_finite = np.isfinite(vectors).all()
        if vectors.shape != expected or not vectors.size or not is_finite:
            array = f"an array of shape {vectors.shape}"
            if not is_finite:
                array += " with NaN or infinite values"
            raise UserError(
                f"embedder must return one vector of {self._size or 'several'} finite numbers per text; got {array} "
                f"for {count(len(texts), 'text')}: fix the embedder, or pass another embedder"
            )
        return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))

    def _input_key(self, fields: Fields) -> str:
        return source_of({name: fields[name] for name in self.names if name in fields})

    def __deepcopy__(self, memo: Any) -> Pool:
        """Return the pool itself, so that copies of a program share the pool."""
        return self


def _fitted_vectorizer(texts: Sequence[str]) -> Any:
    """Return a `TfidfVectorizer` that is fitted to `texts`."""
    # Import late, because this import loads pandas and takes a second.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2))
    try:
        return vectorizer.fit(texts)
    except ValueError:
        # No text contains a word. Any vocabulary will do, because all vectors of the texts will be 0.
        return vectorizer.fit(["none"])


def can_compare(predictor: dspy.Predict, demos: Sequence[Fields], *, by_words: bool) -> bool:
    """Return whether any demo's inputs contain text or, if `by_words` is true, words."""
    names = list(predictor.signature.input_fields)
    content = re.compile(TOKEN if by_words else r"\S")
    return any(content.search(_text_of(demo, names)) for demo in demos)


def _text_of(fields: Fields, names: Sequence[str]) -> str:
    """Return the text of the fields `names`, on separate lines, as it would be after saving and loading."""
    texts = []
    for name in names:
        value = fields.get(name)
        if value is not None:
            text = value if isinstance(value, str) else value_key(value).decode(errors="backslashreplace")
            texts.append(text_without(text))
    return "\n".join(texts)

"""Find the demos in a pool that are nearest to an input, and choose those to show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

import dspy
import numpy as np
from pydantic import ConfigDict
from scipy import sparse

from plr_dspy.errors import UserError
from plr_dspy.programs.media import text_without
from plr_dspy.programs.splits import answer_classes, input_key, source_of
from plr_dspy.statistics.arrays import Array

Fields: TypeAlias = Mapping[str, Any]

# Scripts written without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
TOKEN = rf"[{WITHOUT_SPACES}]|[^\W{WITHOUT_SPACES}]+"  # a word, or a character of a script without spaces
MOST_KEPT = 4_096  # input vectors to cache beside the pool's, as a search repeats examples
LABEL_WEIGHT = 0.5  # weight of a label's share among the candidates
REDUNDANCY_WEIGHT = 0.5  # weight of the similarity to demos already chosen


@dataclass(frozen=True)
class NearestDemos:
    """Settings that choose, for each call, the demos in a pool with the most similar inputs.

    Source: J. Liu et al., "What makes good in-context examples for GPT-3?", DeeLIO 2022.

    Attributes:
        num_demos: Maximum number of demos to show.
        prefer: Second criterion: labels frequent among the candidates, or demos unlike those already chosen.
        nearest_last: Whether the best demo comes last, next to the question, or first.
        num_candidates: Number of most similar demos to choose from.
        max_tokens: Maximum total tokens of the demos; the worst are dropped.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # rejects files from later versions

    num_demos: int = 8
    prefer: Literal["nearest", "frequent labels", "unlike each other"] = "nearest"
    nearest_last: bool = True
    num_candidates: int = 32
    max_tokens: int | None = None

    def __str__(self) -> str:
        place = "last" if self.nearest_last else "first"
        text = f"{self.num_demos} demos found for each input, the nearest {place}"
        if self.prefer != "nearest":
            text += f", {self.prefer} preferred"
        return text


def word_vectors(texts: Sequence[str]) -> tuple[Any, Callable[[str], Array]]:
    """Return the texts' TF-IDF vectors, `[n, d]`, and a function for their cosines with another text, `[n]`."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second and loads pandas

    vectorizer = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2))
    try:
        vectorizer.fit(texts)
    except ValueError:  # None of the texts contains a word.
        vectorizer.fit(["none"])
    vectors = vectorizer.transform(texts)
    by_word = vectors.T.tocsr()
    return vectors, lambda text: (vectorizer.transform([text]) @ by_word).toarray()[0]


class Pool:
    """The demos that a predictor may show, searchable by similarity to a call's inputs.

    Args:
        predictor: Its input fields are compared; its output fields define the demos' classes.
        demos: Examples or dicts.
        sources: Identifiers of the program inputs behind each demo, `[n]`.
        embedder: Computes the vectors to compare; None compares words.
        vectors: Vectors of the demos, `[n, d]`, if known.
        known: Unit vectors from the embedder, by text; updated in place.
        tokens: Prompt tokens of each demo, `[n]`, if known.
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
        self._input_keys = [self._inputs(row) for row in rows]
        texts = [_text_of(row, self.names) for row in rows]
        self._known: dict[str, Array] = {} if known is None else known
        if embedder is None:
            self.vectors, self._cosines = word_vectors(texts)
            return
        if vectors is not None:
            self._known.update(zip(texts, np.asarray(vectors, float), strict=True))
        self._size = next(map(len, self._known.values()), None)
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            # Saved with these decimals, so that a loaded program finds the same demos.
            self._known.update(zip(new, np.round(self._embedded(new), 6), strict=True))
        self.vectors = np.array([self._known[text] for text in texts])
        self._size = self.vectors.shape[1]
        self._most_known = len(self._known) + MOST_KEPT
        self._cosines = self._cosines_by_embedder

    def vote(self, inputs: Fields, number: int, *, without: Fields | None = None) -> dict[str, Any]:
        """Return the most frequent answer among the `number` nearest demos; the nearest breaks ties."""
        near, _ = self._nearest(inputs, number, without)
        votes = Counter(self.classes[near].tolist())
        winner = next(i for i in near if votes[int(self.classes[i])] == max(votes.values()))
        return {name: self.demos[winner].get(name) for name in self.outputs}

    def knows(self, inputs: Fields) -> bool:
        """Return whether a call's inputs can be compared without calling the embedder."""
        return self.embedder is None or _text_of(inputs, self.names) in self._known

    def shown(self, inputs: Fields, nearest: NearestDemos, *, without: Fields | None = None) -> list[int]:
        """Return the indices of the demos for a call's inputs, in prompt order.

        Demos made from the scored example, with the program inputs `without`, or from its copies are left out.
        """
        candidates, similarities = self._nearest(inputs, nearest.num_candidates, without)
        ranked = list(range(len(candidates)))
        if nearest.prefer == "frequent labels":
            classes = self.classes[candidates]
            label_shares = (classes[:, None] == classes).sum(axis=1) / max(1, len(candidates))
            ranked = np.argsort(-similarities - LABEL_WEIGHT * label_shares, kind="stable").tolist()
        elif nearest.prefer == "unlike each other":
            ranked = self._unlike(candidates, similarities, nearest.num_demos)
        best_first = [candidates[place] for place in ranked[: nearest.num_demos]]
        if nearest.max_tokens is not None:
            while sum(self.tokens[demo] for demo in best_first) > nearest.max_tokens:
                best_first.pop()
        if nearest.nearest_last:
            best_first.reverse()
        return best_first

    def _unlike(self, candidates: Sequence[int], similarities: Array, number: int) -> list[int]:
        """Choose positions of diverse candidates, as in J. Carbonell and J. Goldstein, "The use of MMR", SIGIR 1998."""
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
        """Return the indices of the nearest demos, nearest first, and their similarities."""
        cosines = self._cosines(_text_of(inputs, self.names))
        source = None
        own_key = None
        if without is not None:
            source = source_of(without)
            values = set(map(input_key, without.values()))
            # Other examples may share inputs derived by the program.
            if any(input_key(inputs[name]) in values for name in self.names if name in inputs):
                own_key = self._inputs(inputs)
        best = np.argsort(-cosines, kind="stable")
        left = (int(i) for i in best if self.sources[i] != source and self._input_keys[i] != own_key)
        nearest = list(islice(left, number))
        return nearest, cosines[nearest]

    def _cosines_by_embedder(self, text: str) -> Array:
        vector = self._known.get(text)
        if vector is None:
            (vector,) = self._embedded([text])
            if len(self._known) < self._most_known:
                self._known[text] = vector
        return np.asarray(self.vectors @ vector)

    def _embedded(self, texts: Sequence[str]) -> Array:
        """Return unit vectors; raise a ValueError if the embedder returns anything invalid."""
        vectors = np.asarray(self.embedder(list(texts)), dtype=float)  # type: ignore[misc, type-var]
        expected = (len(texts), self._size or vectors.size // len(texts))
        if vectors.shape != expected or not vectors.size or not np.isfinite(vectors).all():
            raise UserError(
                f"embedder must return a vector of {self._size or 'some'} finite numbers for each of {len(texts)} "
                f"texts; got an array of shape {vectors.shape}: mend it, or pass another"
            )
        return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))

    def _inputs(self, fields: Fields) -> str:
        return source_of({name: fields[name] for name in self.names if name in fields})

    def __deepcopy__(self, memo: Any) -> Pool:
        """Return the pool itself: copies of programs share it."""
        return self


def _text_of(fields: Fields, names: Sequence[str]) -> str:
    """Return the text by which a demo or a call is compared."""
    return "\n".join(text_without(fields[name]) for name in names if fields.get(name) is not None)

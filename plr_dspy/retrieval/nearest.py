"""Which demos of a pool are nearest to an input, and which of these are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
from plr_dspy.statistics.calibration import Array

Fields: TypeAlias = Mapping[str, Any]

# Scripts that are written without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
TOKEN = rf"[{WITHOUT_SPACES}]|[^\W{WITHOUT_SPACES}]+"  # a word, or a character of such a script; pairs tell words apart
MOST_KEPT = 4_096  # texts beside the pool's whose vectors are kept: a search asks for its examples again and again
LABEL_WEIGHT = 0.5  # of the share of candidates with a demo's label, beside the demo's similarity to the input
REDUNDANCY_WEIGHT = 0.5  # of the likeness to demos that are shown already


@dataclass(frozen=True)
class NearestDemos:
    """Which of a pool's demos an input is shown: those whose inputs are most like it, the nearest last.

    Source: J. Liu et al., "What makes good in-context examples for GPT-3?", DeeLIO 2022.

    Attributes:
        num_demos: Demos that are shown, if the pool has as many.
        prefer: "nearest"; "frequent labels", which many of the candidates have; or demos "unlike each other".
        nearest_last: Whether the best demo stands last, next to the question, or first.
        num_candidates: The demos that are chosen from are this many of the most similar ones.
        max_tokens: Most tokens of the demos shown together; the worst ones are left out.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # of files from later versions

    num_demos: int = 8
    prefer: Literal["nearest", "frequent labels", "unlike each other"] = "nearest"
    nearest_last: bool = True
    num_candidates: int = 32
    max_tokens: int | None = None

    def __str__(self) -> str:
        place = "last" if self.nearest_last else "first"
        text = f"{self.num_demos} demos found for each input, the nearest {place}"
        return text if self.prefer == "nearest" else f"{text}, {self.prefer} preferred"


def word_vectors(texts: Sequence[str]) -> tuple[Any, Callable[[str], Array]]:
    """Return vectors of texts, ``[n, d]``, and a function that gives their cosines with another text, ``[n]``.

    The vectors count words and pairs of words, the rare ones most (TF-IDF).
    """
    from sklearn.feature_extraction.text import TfidfVectorizer  # which takes a second, and loads pandas

    vectorizer = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2))
    try:
        vectorizer.fit(texts)
    except ValueError:  # There is no word in any of the texts.
        vectorizer.fit(["none"])
    vectors = vectorizer.transform(texts)
    by_word = vectors.T.tocsr()
    return vectors, lambda text: (vectorizer.transform([text]) @ by_word).toarray()[0]


class Pool:
    """The demos that a predictor may show, and how like their inputs are to those of a call.

    An embedder is called at once with the inputs of the demos that are not known, and once with each other input, as
    long as its vector is among the last `MOST_KEPT`.
    """

    def __init__(
        self,
        predictor: dspy.Predict,  # by whose input fields demos and calls are compared, and by its output fields classes
        demos: Sequence[Any],  # examples or dicts
        sources: Sequence[str],  # what identifies the inputs of the program that each demo is made of, [n]
        *,
        embedder: dspy.Embedder | None = None,  # says how like inputs are; None compares the words that they share
        vectors: Any = None,  # of the inputs of the demos, [n, d], where they are known
        known: dict[str, Array] | None = None,  # vectors of length 1 that the embedder made, by text: kept up to date
        tokens: Sequence[int] = (),  # of each demo in a prompt, [n]; empty where that is not known
    ) -> None:
        self.demos = list(demos)
        self.sources = list(sources)
        self.embedder = embedder
        self.called_blindly = False  # whether a guarded call did not know which example is scored
        self.names = list(predictor.signature.input_fields)
        self.outputs = list(predictor.signature.output_fields)
        rows = [dict(demo.items()) for demo in demos]
        texts = [_text_of(row, self.names) for row in rows]
        self._known = known = {} if known is None else known
        if vectors is not None:
            known.update(zip(texts, np.asarray(vectors, float), strict=True))
        if embedder is None:
            self.vectors, self._cosines = word_vectors(texts)
        else:
            self._size = next(map(len, known.values()), None)
            new = [text for text in dict.fromkeys(texts) if text not in known]
            if new:
                # As many decimals as are saved, so that a loaded program finds the same.
                known.update(zip(new, np.round(self._embedded(new), 6), strict=True))
            self.vectors = np.array([known[text] for text in texts])
            self._cosines = self._cosines_by_embedder
            self._size = self.vectors.shape[1]
            self._most = len(known) + MOST_KEPT
        self.tokens = list(tokens) or [0] * len(rows)
        self.classes = np.array(answer_classes(rows, self.outputs), dtype=int)
        self._input_keys = [self._inputs(row) for row in rows]

    def vote(self, inputs: Fields, number: int, *, without: Fields | None = None) -> dict[str, Any]:
        """Return the most frequent answer of this many nearest demos, of equals the nearest one's.

        `without` is as in `shown`.
        """
        near, _ = self._nearest(inputs, number, without)
        votes = Counter(self.classes[near].tolist())
        winner = next(i for i in near if votes[int(self.classes[i])] == max(votes.values()))
        return {name: self.demos[winner].get(name) for name in self.outputs}

    def knows(self, inputs: Fields) -> bool:
        """Return whether no embedder needs to be asked for the inputs of a call."""
        return self.embedder is None or _text_of(inputs, self.names) in self._known

    def shown(self, inputs: Fields, nearest: NearestDemos, *, without: Fields | None = None) -> list[int]:
        """Return the demos for the inputs of a call, in the order of the prompt.

        Left out are those of the same inputs, and of the same source as the example that is scored: `without` has the
        program's inputs of it.
        """
        candidates, similarities = self._nearest(inputs, nearest.num_candidates, without)
        if nearest.prefer == "frequent labels":
            scores = similarities + LABEL_WEIGHT * self._label_shares(candidates)
            ranked = np.argsort(-scores, kind="stable").tolist()
        elif nearest.prefer == "unlike each other":
            ranked = self._unlike(candidates, similarities, nearest.num_demos)
        else:
            ranked = list(range(len(candidates)))
        best_first = [candidates[place] for place in ranked[: nearest.num_demos]]
        if nearest.max_tokens is not None:
            while sum(self.tokens[demo] for demo in best_first) > nearest.max_tokens:
                best_first.pop()
        return best_first[::-1] if nearest.nearest_last else best_first

    def _label_shares(self, candidates: Sequence[int]) -> Array:
        """Return for each candidate the share of the candidates that have its label, ``[c]``."""
        classes = self.classes[candidates]
        counts = Counter(classes.tolist())
        return np.array([counts[label] / len(candidates) for label in classes.tolist()])

    def _unlike(self, candidates: Sequence[int], similarities: Array, number: int) -> list[int]:
        """Return places among the candidates, each time the one that is like the input and unlike those before it.

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
        """Return the demos with the inputs most like these, the likest first, of equals the first; and how like."""
        cosines = self._cosines(_text_of(inputs, self.names))
        source = None
        own_key = None
        if without is not None:
            source = source_of(without)
            values = set(map(input_key, without.values()))
            # What follows from its inputs, others may share: only these tell that it is asked.
            if any(input_key(inputs[name]) in values for name in self.names if name in inputs):
                own_key = self._inputs(inputs)
        best = np.argsort(-cosines, kind="stable")
        left = (int(i) for i in best if self.sources[i] != source and self._input_keys[i] != own_key)
        nearest = list(islice(left, number))
        return nearest, cosines[nearest]

    def _cosines_by_embedder(self, text: str) -> Array:
        """Return the cosines of a text's vector with those of the demos, ``[n]``."""
        vector = self._known.get(text)
        if vector is None:
            vector = self._known[text] = self._embedded([text])[0]
            with suppress(RuntimeError, KeyError):  # where another thread does the same
                if len(self._known) > self._most:
                    del self._known[next(iter(self._known))]
        return np.asarray(self.vectors @ vector)

    def _embedded(self, texts: Sequence[str]) -> Array:
        """Return vectors of texts, of length 1; raise a ValueError if the embedder returns something else."""
        wrong = ""
        try:
            vectors = np.asarray(self.embedder(list(texts)), dtype=float)  # type: ignore[misc, type-var]
            expected = (len(texts), self._size or vectors.size // len(texts))
            if vectors.shape != expected or not vectors.size:
                wrong = f"it returned an array of shape {vectors.shape}"
            elif not np.isfinite(vectors).all():
                wrong = "not all that it returned are finite"
        except (TypeError, ValueError) as error:  # DSPy's own makes an array of what a function returns.
            wrong = f"it raised {error!r}"
        if wrong:
            raise UserError(
                f"embedder must return a vector of {self._size or 'some'} finite numbers for each of {len(texts)} "
                f"texts; {wrong}: mend it, or pass another"
            )
        return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))

    def _inputs(self, fields: Fields) -> str:
        """Return what identifies the inputs of a demo or a call."""
        return source_of({name: fields[name] for name in self.names if name in fields})

    def __deepcopy__(self, memo: Any) -> Pool:
        """Return the pool itself, which nothing changes: copies of programs share it."""
        return self


def _text_of(fields: Fields, names: Sequence[str]) -> str:
    """Return the text that some fields of a demo or a call are compared by; pictures, sounds and files have none."""
    texts = [text_without(fields[name]) for name in names if fields.get(name) is not None]
    return "\n".join(text for text in texts if text is not None)

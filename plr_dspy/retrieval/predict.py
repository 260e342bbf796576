"""Demos found for each input: which of a pool a rule shows for an input, and the predictors that show them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, TypeAlias

import dspy
import numpy as np
from dspy.predict.predict import serialize_object
from pydantic import ConfigDict, TypeAdapter
from scipy import sparse

from plr_dspy.errors import FatalLMError
from plr_dspy.plackett_luce.distribution import Features, choose
from plr_dspy.programs.media import text_without
from plr_dspy.programs.splits import answer_classes, input_key, source_of
from plr_dspy.statistics.calibration import Array

Fields: TypeAlias = Mapping[str, Any]

# Scripts that are written without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese.
WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
TOKEN = rf"[{WITHOUT_SPACES}]|[^\W{WITHOUT_SPACES}]+"  # a word, or a character of such a script; pairs tell words apart
FEATURES = ("similarity", "rank", "label_share", "length", "repeated_label", "likeness")  # what a logit is made of
MOST_KEPT = 4_096  # texts beside the pool's whose vectors are kept: a search asks for its examples again and again
NEAREST = {"similarity": 1.0}  # the coefficients of a rule that shows what is most like the input
# What DSPy's error names where the student itself loads the file, in place of a field that it does not know.
LOADER = "plr_dspy: demos are found for each input; load this with plr_dspy.load_program(student, path)"


@dataclass(frozen=True)
class Rule:
    """Shows the demos of the largest logits, which their features give; of equals the first of the pool has the larger.

    The default shows the demos whose inputs are most like the input, the nearest last. Source: J. Liu et al., "What
    makes good in-context examples for GPT-3?", DeeLIO 2022.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # Of files from later versions.

    num_demos: int = 8  # that are shown, where the pool has so many
    coefficients: Mapping[str, float] = field(default_factory=lambda: dict(NEAREST))  # of features; others are 0
    nearest_last: bool = True  # whether the demo of the largest logit stands last, next to the question, or first
    num_candidates: int = 32  # the features are those among so many demos that are most like the input
    max_tokens: int | None = None  # of the demos shown together; those of the smallest logits are left out
    order: tuple[int, ...] = ()  # of the prompt instead: each demo by its place among them, the largest logit's 0

    def __post_init__(self) -> None:
        if self.order and sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"order must be a permutation of 0, 1, ...; got {self.order}")
        if unknown := sorted(self.coefficients.keys() - set(FEATURES)):
            raise ValueError(f"coefficients must be of features among {list(FEATURES)}; got {unknown}")

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {value:+g}" for name, value in self.coefficients.items())
        order = f"the nearest {'last' if self.nearest_last else 'first'}"
        if self.order:
            order = f"by nearness in the order {' '.join(str(place + 1) for place in self.order)}"
        how = f"{self.num_demos} demos found for each input, {order}"
        return how if self.coefficients == NEAREST else f"{how} (nearest by {terms})"

    def arranged(self, nearest_first: Sequence[int]) -> tuple[int, ...]:
        """Demos that are shown, in the order of the prompt."""
        if self.order:
            return tuple(nearest_first[place] for place in self.order if place < len(nearest_first))
        return tuple(nearest_first[::-1] if self.nearest_last else nearest_first)

    def chosen(self, features: Features, length: int) -> tuple[int, ...]:
        """The items that are shown, the mode of a distribution over choices."""
        return choose([self.coefficients.get(name, 0.0) for name in FEATURES], features, length)


def word_vectors(texts: Sequence[str]) -> tuple[Any, Callable[[str], Array]]:
    """Vectors of texts, by their words and pairs of words, the rare ones most (TF-IDF), ``[n, d]``; and what
    gives their cosines with that of another text, ``[n]``."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # which takes a second, and loads pandas

    vectorizer = TfidfVectorizer(token_pattern=TOKEN, ngram_range=(1, 2))
    try:
        vectorizer.fit(texts)
    except ValueError:  # There is no word in any of the texts.
        vectorizer.fit(["none"])
    vectors = vectorizer.transform(texts)
    by_word = vectors.T.tocsr()
    return vectors, lambda text: (vectorizer.transform([text]) @ by_word).toarray()[0]


class CalledBlindly(FatalLMError, RuntimeError):
    """A call cannot know which example is scored, and might be shown the answer."""

    def __init__(self) -> None:
        super().__init__(
            "the program calls a predictor in a thread that does not know which example is scored, so that a demo "
            "might show the answer: start threads with dspy.Parallel, dspy.asyncify or contextvars.copy_context, "
            "or show the same demos to every input, as of PLFewShot(demos='fixed')"
        )


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
        self.demos, self.sources, self.embedder = list(demos), list(sources), embedder
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
            if new := [text for text in dict.fromkeys(texts) if text not in known]:
                # As many decimals as are saved, so that a loaded program finds the same.
                known.update(zip(new, np.round(self._embedded(new), 6), strict=True))
            self.vectors, self._cosines = np.array([known[text] for text in texts]), self._cosines_by_embedder
            self._size, self._most = self.vectors.shape[1], len(known) + MOST_KEPT
        self.tokens = list(tokens) or [0] * len(rows)
        self.classes = np.array(answer_classes(rows, self.outputs), dtype=int)
        self._input_keys = [self._inputs(row) for row in rows]
        sizes = np.log1p([len(_text_of(row, [*self.names, *self.outputs])) for row in rows])
        self._lengths: Array = sizes - sizes.mean() if len(sizes) else sizes

    def vote(self, inputs: Fields, number: int, *, without: Fields | None = None) -> dict[str, Any]:
        """The most frequent answer of so many nearest demos, of equals the nearest one's; `without` as in `shown`."""
        near, _ = self._nearest(inputs, number, without)
        votes = Counter(self.classes[near].tolist())
        winner = next(i for i in near if votes[int(self.classes[i])] == max(votes.values()))
        return {name: self.demos[winner].get(name) for name in self.outputs}

    def knows(self, inputs: Fields) -> bool:
        """Whether no embedder needs to be asked for the inputs of a call."""
        return self.embedder is None or _text_of(inputs, self.names) in self._known

    def shown(self, inputs: Fields, rule: Rule, *, without: Fields | None = None) -> list[int]:
        """The demos that a rule shows for the inputs of a call, in the order of the prompt.

        Left out are those of the same inputs, and of the same source as the example that is scored: `without` has the
        program's inputs of it.
        """
        candidates, features = self.features(inputs, rule.num_candidates, without=without)
        chosen = [candidates[i] for i in rule.chosen(features, min(rule.num_demos, len(candidates)))]
        while rule.max_tokens is not None and sum(self.tokens[i] for i in chosen) > rule.max_tokens:
            chosen.pop()
        return list(rule.arranged(chosen))

    def beside(self, fixed: Sequence[Any], inputs: Fields, rule: Rule, *, without: Fields | None) -> list[Any]:
        """Demos that come first for every input, and of those that a rule shows for this one the others."""
        known, found = [dict(demo.items()) for demo in fixed], self.shown(inputs, rule, without=without)
        return [*fixed, *(self.demos[i] for i in found if dict(self.demos[i].items()) not in known)]

    def features(self, inputs: Fields, number: int, *, without: Fields | None = None) -> tuple[list[int], Features]:
        """So many demos that are most like some inputs, and their `FEATURES`, ``[c, f]``; `without` is as in `shown`.

        These are: the cosine of the vectors; less the logarithm of the place among the likest; the share of the
        candidates that have the demo's label; the logarithm of its length less the mean of the pool; and of what is
        shown already, the share that has its label, and the largest cosine to it.
        """
        candidates, like = self._nearest(inputs, number, without)
        classes = self.classes[candidates]
        same = classes[:, None] == classes[None, :]
        fixed = [like, -np.log1p(np.arange(len(candidates))), same.mean(axis=1) if candidates else like]
        some: Any = self.vectors[candidates]
        cosines = np.asarray((some @ some.T).todense() if sparse.issparse(some) else some @ some.T)

        def features(chosen: Sequence[int]) -> Array:
            repeated = likeness = np.zeros(len(candidates))
            if len(chosen):
                repeated, likeness = same[:, chosen].mean(axis=1), cosines[:, chosen].max(axis=1)
            return np.stack([*fixed, self._lengths[candidates], repeated, likeness], axis=1)

        return candidates, features

    def _nearest(self, inputs: Fields, number: int, without: Fields | None) -> tuple[list[int], Array]:
        """The demos whose inputs are most like some inputs, the likest first, of equals the first; and how like."""
        like, source, own_key = self._cosines(_text_of(inputs, self.names)), None, None
        if without is not None:
            source, values = source_of(without), set(map(input_key, without.values()))
            # What follows from its inputs, others may share: only these tell that it is asked.
            if any(input_key(inputs[name]) in values for name in self.names if name in inputs):
                own_key = self._inputs(inputs)
        best = np.argsort(-like, kind="stable")
        left = (int(i) for i in best if self.sources[i] != source and self._input_keys[i] != own_key)
        found = list(islice(left, number))
        return found, like[found]

    def _cosines_by_embedder(self, text: str) -> Array:
        """Cosines of a text's vector and of those of the demos, ``[n]``."""
        vector = self._known.get(text)
        if vector is None:
            vector = self._known[text] = self._embedded([text])[0]
            with suppress(RuntimeError, KeyError):  # where another thread does the same
                if len(self._known) > self._most:
                    del self._known[next(iter(self._known))]
        return np.asarray(self.vectors @ vector)

    def _embedded(self, texts: Sequence[str]) -> Array:
        """Vectors of texts, of length 1; a ValueError where the embedder returns something else."""
        try:
            found = np.asarray(self.embedder(list(texts)), dtype=float)  # type: ignore[misc, type-var]
            expected = (len(texts), self._size or found.size // len(texts))
            wrong = f"it returned an array of shape {found.shape}" * (found.shape != expected or not found.size)
            wrong = wrong or "not all that it returned are finite" * (not np.isfinite(found).all())
        except (TypeError, ValueError) as error:  # DSPy's own makes an array of what a function returns.
            wrong = f"it raised {error!r}"
        if wrong:
            raise ValueError(
                f"embedder must return a vector of {self._size or 'some'} finite numbers for each of {len(texts)} "
                f"texts; {wrong}: mend it, or pass another"
            )
        return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12))

    def _inputs(self, fields: Fields) -> str:
        """What identifies the inputs of a demo or a call."""
        return source_of({name: fields[name] for name in self.names if name in fields})

    def __deepcopy__(self, memo: Any) -> Pool:
        """The pool itself, which nothing changes: copies of programs share it."""
        return self


def _text_of(fields: Fields, names: Sequence[str]) -> str:
    """The text that some fields of a demo or a call are compared by; pictures, sounds and files have none."""
    texts = [text_without(fields[name]) for name in names if fields.get(name) is not None]
    return "\n".join(text for text in texts if text is not None)


@dataclass(frozen=True)
class Retrieval:
    """Where a predictor finds its demos, and by which rule.

    Guarded, a call must say which example it scores: then one from a thread that does not know it is an error, no leak.
    """

    pool: Pool
    rule: Rule
    guarded: bool = False

    @property
    def facts(self) -> list[Any]:
        """What decides which demos are found."""
        pool, demos = self.pool, [dict(demo.items()) for demo in self.pool.demos]
        return [asdict(self.rule), demos, pool.sources, pool.tokens, pool.embedder]


class RetrievingPredict(dspy.Predict):
    """A predictor that shows, after the demos that it has, others that it finds for the inputs of a call."""

    retrieval: Retrieval

    def forward(self, **inputs: Any) -> Any:
        """What the predictor answers with these demos, unless the caller brings some."""
        demos = {} if "demos" in inputs else {"demos": self.shown(inputs)}
        return super().forward(**demos, **inputs)

    async def aforward(self, **inputs: Any) -> Any:
        """What `forward` does, with an async call."""
        demos = {} if "demos" in inputs else {"demos": self.shown(inputs)}
        return await super().aforward(**demos, **inputs)

    def shown(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The demos for the inputs of a call, none of them twice."""
        found, scored = self.retrieval, dspy.settings.get("plr_dspy_scored")
        if found.guarded and scored is None:
            found.pool.called_blindly = True  # The thread may not hand on the exception.
            raise CalledBlindly
        return found.pool.beside(self.demos, inputs, found.rule, without=scored)

    def reset(self) -> None:
        """Forget the demos, those that are found too, as DSPy's optimizers do before they choose others."""
        super().reset()
        self.__class__ = type(self).__bases__[0]  # the predictor's own
        del self.retrieval

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """That of the predictor, the pool with all its examples, and the rule."""
        pool = self.retrieval.pool
        found = {
            "rule": asdict(self.retrieval.rule),
            "demos": [{name: serialize_object(value) for name, value in demo.items()} for demo in pool.demos],
            "sources": pool.sources,
            "tokens": pool.tokens,
            "vectors": None if pool.embedder is None else pool.vectors.tolist(),
        }
        state = super().dump_state(json_mode)
        return {**state, "retrieval": found, "fields": {**state.get("fields", {}), LOADER: {}}}

    def load_state(self, state: Mapping[str, Any], **options: Any) -> RetrievingPredict:
        """Become what `dump_state` was taken of; the retrieval is set by `load_program`, which knows the embedder."""
        fields = {name: value for name, value in state.get("fields", {}).items() if name != LOADER}
        rest = {name: value for name, value in state.items() if name not in ("retrieval", "fields")}
        super().load_state({**rest, "fields": fields}, **options)
        return self


def retrieve_in(program: dspy.Module, retrievals: Mapping[str, Retrieval]) -> dspy.Module:
    """Make predictors of a program, given by their names, find demos for each input, and return the program."""
    predictors = dict(program.named_predictors())
    for name, retrieval in retrievals.items():
        predictor = predictors[name]
        if not isinstance(predictor, RetrievingPredict):
            predictor.__class__ = _retrieving(type(predictor))  # type: ignore[arg-type]
        predictor.retrieval = retrieval
    return program


@functools.cache
def _retrieving(kind: type[dspy.Predict]) -> type[RetrievingPredict]:
    """The class of predictors of a kind, such as a user's own, that find their demos."""
    if kind is dspy.Predict:
        return RetrievingPredict
    # What the kind does to its inputs comes first.
    return type(f"Retrieving{kind.__name__}", (kind, RetrievingPredict), {})


def loaded(predictor: dspy.Predict, state: Mapping[str, Any], embedder: dspy.Embedder | None) -> Retrieval:
    """The retrieval of a saved predictor; a ValueError for want of its embedder, and for rules of a later version."""
    if state["vectors"] is not None and embedder is None:
        raise ValueError("its demos are found by embeddings: pass the embedder that they were made with as embedder")
    examples = [dspy.Example(demo) for demo in state["demos"]]
    known = {name: state[name] for name in ("vectors", "tokens")}
    pool = Pool(predictor, examples, state["sources"], embedder=embedder, **known)
    return Retrieval(pool, TypeAdapter(Rule).validate_python(state["rule"]))

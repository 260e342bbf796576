"""Predictors that show demos found for each input, and how they are saved and loaded."""

from __future__ import annotations

import functools
from ast import literal_eval
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dspy
from dspy.predict.predict import serialize_object
from pydantic import TypeAdapter

from plr_dspy.retrieval.rule import Pool, Rule

LOADER = "plr_dspy: demos are found for each input; load this with plr_dspy.load_program(student, path)"
"""What DSPy's error names where the student itself loads the file, in place of a field that it does not know."""


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

    @property
    def input_names(self) -> set[tuple[str, ...]]:
        """The names of the inputs of the examples that demos are made of, as far as these are known."""
        return {tuple(name for name, _ in literal_eval(source)) for source in set(self.pool.sources) if source}

    def demos(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The demos for the inputs of a call, in the order of the prompt."""
        scored = dspy.settings.get("plr_dspy_scored")
        if self.guarded and scored is None:
            raise RuntimeError(
                "the program calls a predictor in a thread that does not know which example is scored, so that a demo "
                "might show the answer: start threads with dspy.Parallel, dspy.asyncify or contextvars.copy_context, "
                "or show the same demos to every input, as of PLFewShot(demos='fixed')"
            )
        return [self.pool.demos[i] for i in self.pool.shown(inputs, self.rule, without=scored)]


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
        return joined(self.demos, self.retrieval.demos(inputs))

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
            "vectors": None if pool.embedder is None else pool.similarity.vectors.tolist(),
        }
        state = super().dump_state(json_mode)
        return {**state, "retrieval": found, "fields": {**state.get("fields", {}), LOADER: {}}}

    def load_state(self, state: Mapping[str, Any], **options: Any) -> RetrievingPredict:
        """Become what `dump_state` was taken of; the retrieval is set by `load_program`, which knows the embedder."""
        fields = {name: value for name, value in state.get("fields", {}).items() if name != LOADER}
        rest = {name: value for name, value in state.items() if name not in ("retrieval", "fields")}
        super().load_state({**rest, "fields": fields}, **options)
        return self


def joined(fixed: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """The demos that come first for every input, and those found that are not among them."""
    known = [dict(demo.items()) for demo in fixed]
    return [*fixed, *(demo for demo in found if dict(demo.items()) not in known)]


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
    examples = [dspy.Example(**demo) for demo in state["demos"]]
    known = {name: state[name] for name in ("vectors", "tokens")}
    pool = Pool(predictor, examples, state["sources"], embedder=embedder, **known)
    return Retrieval(pool, TypeAdapter(Rule).validate_python(state["rule"]))

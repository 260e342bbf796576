"""Predictors that retrieve demos for the inputs of each call, with functions to save and load them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import dspy
from pydantic import TypeAdapter

from plr_dspy.dspy_compat import serialize_object
from plr_dspy.errors import UserError
from plr_dspy.retrieval.nearest import Fields, NearestDemos, Pool

logger = logging.getLogger(__name__)

STATE_VERSION = 2  # version of a retrieving predictor's saved state

# Name of an extra field in saved files. `student.load()` rejects this field with an error that
# shows the name.
LOADER = "plr_dspy: demos are found for each input; load this with plr_dspy.load_program(student, path)"


@dataclass(frozen=True)
class Retrieval:
    """A pool of demos, and the settings for retrieval from this pool.

    Attributes:
        pool: The demos to search.
        nearest: The settings for the search.
        guarded: Whether to retrieve demos only if it is known which example is being scored.
            Without this guard, a retrieved demo could show the answer to this example.
    """

    pool: Pool
    nearest: NearestDemos
    guarded: bool = False

    @property
    def facts(self) -> list[Any]:
        """All settings and data that affect which demos are retrieved, for a program's digest."""
        pool = self.pool
        demos = [dict(demo.items()) for demo in pool.demos]
        return [asdict(self.nearest), demos, pool.sources, pool.tokens, pool.embedder]

    @property
    def num_demos(self) -> int:
        return min(self.nearest.num_demos, len(self.pool.demos))

    @property
    def num_tokens(self) -> int:
        """Estimated number of tokens in the demos retrieved for one input."""
        tokens = round(sum(self.pool.tokens) / max(1, len(self.pool.tokens)) * self.num_demos)
        if self.nearest.max_tokens is not None:
            return min(tokens, self.nearest.max_tokens)
        return tokens

    def demos_for(self, inputs: Fields, *, without: Fields | None) -> list[Any]:
        """Return the demos to show for the inputs of a call. `without` is as in `Pool.shown()`."""
        return [
            self.pool.demos[number] for number in self.pool.shown(inputs, self.nearest, without=without)
        ]


class RetrievingPredict(dspy.Predict):
    """A predictor that shows fixed demos, followed by demos that it retrieves for the inputs of each call."""

    retrieval: Retrieval

    def forward(self, **inputs: Any) -> Any:
        if "demos" not in inputs:
            inputs["demos"] = self.shown(inputs)
        return super().forward(**inputs)

    async def aforward(self, **inputs: Any) -> Any:
        if "demos" not in inputs:
            inputs["demos"] = self.shown(inputs)
        return await super().aforward(**inputs)

    def shown(self, inputs: Fields) -> list[Any]:
        """Return the predictor's fixed demos and the demos retrieved for the inputs of a call."""
        scored = dspy.settings.get("plr_dspy_scored")
        if self.retrieval.guarded and scored is None:
            warn_of_unknown_example()
            return list(self.demos)
        return [*self.demos, *self.retrieval.demos_for(inputs, without=scored)]

    def reset(self) -> None:
        """Turn this predictor into an ordinary one without demos, so that optimizers can choose its demos."""
        super().reset()
        self.__class__ = type(self).__bases__[0]
        del self.retrieval

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        pool = self.retrieval.pool
        retrieval = {
            "version": STATE_VERSION,
            "nearest": asdict(self.retrieval.nearest),
            "demos": [
                {name: serialize_object(value) for name, value in demo.items()} for demo in pool.demos
            ],
            "sources": pool.sources,
            "tokens": pool.tokens,
            "vectors": None if pool.embedder is None else pool.vectors.tolist(),
        }
        state = super().dump_state(json_mode)
        return {**state, "retrieval": retrieval, "fields": {**state.get("fields", {}), LOADER: {}}}

    def load_state(self, state: Mapping[str, Any], **options: Any) -> RetrievingPredict:
        """Load all parts of the state except the retrieval, and return the predictor.

        The retrieval may need an embedder, so `load_program()` restores it.
        """
        fields = {name: value for name, value in state.get("fields", {}).items() if name != LOADER}
        rest = {name: value for name, value in state.items() if name not in ("retrieval", "fields")}
        super().load_state({**rest, "fields": fields}, **options)
        return self


def retrieve_in(program: dspy.Module, retrievals: Mapping[str, Retrieval]) -> dspy.Module:
    """Make a program's predictors retrieve demos for each input, and return the program."""
    predictors = dict(program.named_predictors())
    for name, retrieval in retrievals.items():
        predictor = predictors[name]
        if not isinstance(predictor, RetrievingPredict):
            predictor.__class__ = _retrieving(type(predictor))  # type: ignore[arg-type]
        predictor.retrieval = retrieval
    return program


def retrievals_of(program: dspy.Module) -> dict[str, Retrieval]:
    predictors = program.named_predictors()
    return {
        name: predictor.retrieval
        for name, predictor in predictors
        if isinstance(predictor, RetrievingPredict)
    }


@functools.cache  # Log the warning only once.
def warn_of_unknown_example() -> None:
    logger.warning(
        "A predictor retrieves no demos, because its thread was started without the context that identifies the "
        "example being scored. Start threads with dspy.Parallel, dspy.asyncify or contextvars.copy_context to pass "
        "the context on, or use PLFewShot(demos='fixed')."
    )


@functools.cache
def _retrieving(kind: type[dspy.Predict]) -> type[RetrievingPredict]:
    """Return a subclass of the given predictor class that also retrieves demos."""
    if kind is dspy.Predict:
        return RetrievingPredict
    # Put the predictor's own class first, because demos must be retrieved for the inputs as changed
    # by this class.
    return type(f"Retrieving{kind.__name__}", (kind, RetrievingPredict), {})


def loaded(predictor: dspy.Predict, state: Mapping[str, Any], embedder: dspy.Embedder | None) -> Retrieval:
    """Return a predictor's `Retrieval`, restored from saved state.

    Args:
        predictor: The predictor that will show the demos.
        state: The entry "retrieval" in the predictor's saved state.
        embedder: The embedder that was used when the program was compiled, or None.
    """
    version = state.get("version", 1)
    if version != STATE_VERSION:
        raise UserError(
            f"the saved retrieval settings must have format version {STATE_VERSION} for this version of plr_dspy; "
            f"got {version!r}: compile the program again"
        )
    if state["vectors"] is not None and embedder is None:
        raise UserError(
            "embedder must be a dspy.Embedder, because the demos are retrieved by embeddings; got None: pass the "
            "embedder that was passed to PLFewShot"
        )
    if state["vectors"] is None:  # If there are no vectors, demos are compared by words.
        embedder = None
    examples = [dspy.Example(demo) for demo in state["demos"]]
    vectors = {"vectors": state["vectors"], "tokens": state["tokens"]}
    pool = Pool(predictor, examples, state["sources"], embedder=embedder, **vectors)
    return Retrieval(pool, TypeAdapter(NearestDemos).validate_python(state["nearest"]))

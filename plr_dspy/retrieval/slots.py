"""The search space with retrieval: arrangements of fixed demos, and settings for retrieving demos."""

import itertools
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import dspy

from plr_dspy.programs.fingerprint import digest
from plr_dspy.programs.instructions import OWN
from plr_dspy.programs.slots import PooledDemo, PoolSlots
from plr_dspy.programs.splits import source_of, value_key
from plr_dspy.retrieval.nearest import NearestDemos, Pool, can_compare
from plr_dspy.retrieval.predict import Retrieval, retrieve_in
from plr_dspy.search.space import Candidate, WholeProgram
from plr_dspy.statistics.arrays import Array

logger = logging.getLogger(__name__)

NEAREST_LAST = "nearest last"
FREQUENT_LABELS = "frequent labels"
NOT_COMPARABLE = "have no text to compare (for example, only images)"
# Minimum size of pools in which frequent labels are preferred if there is no search. In
# experiments, this preference raised scores with 1,000 demos but not with 100 (docs/evidence.md).
LARGE_POOL = 320


def variations(max_demos: int, min_demos: int, max_tokens: int | None) -> dict[str, NearestDemos]:
    """Return the retrieval settings to try, keyed by name. Omit duplicates of the first settings."""
    first = NearestDemos(max_demos, num_candidates=max(32, 2 * max_demos), max_tokens=max_tokens)
    others = {
        "half as many": replace(first, num_demos=max(1, min_demos, max_demos // 2)),
        FREQUENT_LABELS: replace(first, prefer="frequent labels"),
        "unlike each other": replace(first, prefer="unlike each other"),
        "nearest first": replace(first, nearest_last=False),
    }
    return {NEAREST_LAST: first, **{name: nearest for name, nearest in others.items() if nearest != first}}


def fixed_and_retrieved(
    pools: Mapping[str, Sequence[PooledDemo]],
    *,
    examples: Mapping[int, dspy.Example],
    retrievable: Mapping[int, dspy.Example],
    max_tokens: int | None,
) -> tuple[dict[str, list[PooledDemo]], dict[str, list[PooledDemo]]]:
    """Return the demos that can be fixed and those that can be retrieved, each keyed by predictor name.

    Args:
        pools: All demos of each predictor, keyed by predictor name.
        examples: The examples that can be fixed demos, keyed by trainset index.
        retrievable: The examples that can be retrieved, keyed by trainset index.
        max_tokens: Maximum number of tokens in a retrieved demo. None means no limit.
    """
    only_retrieved = {f"trainset[{number}]" for number in retrievable.keys() - examples.keys()}
    places = {f"trainset[{number}]": place for place, number in enumerate(retrievable)}
    # The student's own demos precede equal examples in the pools. Retrieve them like any other example.
    origins = {
        value_key(dict(example.items())): f"trainset[{number}]" for number, example in retrievable.items()
    }
    fixed = {}
    retrieved = {}
    for name, demos in pools.items():
        fixed[name] = [demo for demo in demos if demo.origin not in only_retrieved]
        others = []
        for pooled in demos:
            origin = pooled.origin
            if origin == OWN:
                origin = origins.get(value_key(dict(pooled.demo.items())), OWN)
            if origin != OWN and (max_tokens is None or pooled.tokens <= max_tokens):
                others.append(replace(pooled, origin=origin))
        retrieved[name] = sorted(others, key=lambda pooled: places.get(pooled.origin, -1))
    return fixed, retrieved


def make_pools(
    program: dspy.Module,
    retrieved: Mapping[str, Sequence[PooledDemo]],
    *,
    examples: Mapping[int, dspy.Example],
    embedder: dspy.Embedder | None,
    known: dict[str, Array],
    warns: bool,
) -> dict[str, Pool]:
    """Return a searchable pool for each predictor with demos to retrieve, keyed by predictor name.

    Predictors are omitted if their inputs have no text to compare.

    Args:
        program: The program whose predictors determine which fields to compare.
        retrieved: The demos that each predictor can retrieve, keyed by predictor name.
        examples: The examples from which the demos were made, keyed by trainset index.
        embedder, known: As in `Pool`.
        warns: Whether to log a warning about the omitted predictors.
    """
    sources = {}
    for number, example in examples.items():
        source = source_of(example.inputs())
        sources[f"trainset[{number}]"] = source
        sources[f"bootstrapped from trainset[{number}]"] = source
    predictors = dict(program.named_predictors())
    pools = {}
    for name, demos in retrieved.items():
        rows = [pooled.demo for pooled in demos]
        can_retrieve = rows and can_compare(predictors[name], rows, by_words=embedder is None)
        if rows and not can_retrieve and warns:
            logger.warning(
                "no demos are retrieved for predictor %r, because its inputs %s", name, NOT_COMPARABLE
            )
        if can_retrieve:
            pools[name] = Pool(
                predictors[name],
                rows,
                [sources.get(pooled.origin, "") for pooled in demos],
                embedder=embedder,
                known=known,
                tokens=[pooled.tokens for pooled in demos],
            )
    return pools


class RetrievalSlots(PoolSlots):
    """Arrangements of demos, and programs that retrieve demos for each input.

    Args:
        nearest: The retrieval settings to try, keyed by name.
        retrieval_pools: The pools from which demos are retrieved, keyed by predictor name.
        program, pools: As in `PoolSlots`.
        limits: Other arguments of `PoolSlots`.
    """

    def __init__(
        self,
        program: dspy.Module,
        pools: Mapping[str, Sequence[PooledDemo]],
        *,
        nearest: Mapping[str, NearestDemos],
        retrieval_pools: Mapping[str, Pool],
        **limits: Any,
    ) -> None:
        self.retrieval_pools = dict(retrieval_pools)
        self._variations = list(nearest.values()) if retrieval_pools else []
        self._num_rivals = len(limits.get("rivals", ()))
        names = list(nearest) if retrieval_pools else []
        self.whole_programs = tuple(
            itertools.starmap(WholeProgram, enumerate(names, start=self._num_rivals))
        )
        super().__init__(program, pools, programs=self.whole_programs, **limits)
        self.embedder = next((pool.embedder for pool in retrieval_pools.values()), None)
        self._program_digests: dict[WholeProgram, str] = {}
        # `Predict` and `ChainOfThought` pass the program's inputs on to the predictor unchanged, so
        # the retrieved demos are known before the call.
        forwards = (dspy.Predict.forward, dspy.ChainOfThought.forward)
        patched_forward = vars(program).get("forward")  # dspy.syncify sets this attribute
        self._passes_inputs_on = (
            patched_forward is None and getattr(type(program), "forward", None) in forwards
        )

    @property
    def without_calls(self) -> WholeProgram:
        """The candidate to return without a search: a program that retrieves demos for each input."""
        largest = max(len(pool.demos) for pool in self.retrieval_pools.values())
        name = FREQUENT_LABELS if largest >= LARGE_POOL else NEAREST_LAST
        return next(whole for whole in self.whole_programs if whole.name == name)

    def variation(self, candidate: Candidate) -> NearestDemos | None:
        """Return the candidate's retrieval settings, or None if the candidate does not retrieve demos."""
        if not isinstance(candidate, WholeProgram) or candidate in self.rivals:
            return None
        return self._variations[candidate.number - self._num_rivals]

    def showing(self, share: float) -> Candidate:
        shows_fixed_demos = any(most for _, most in self.space.limits[: len(self.slots)])
        if shows_fixed_demos or not self.whole_programs:
            return super().showing(share)
        return self.whole_programs[0]

    def tokens(self, candidate: Candidate) -> int:
        num_retrieved = sum(retrieval.num_tokens for retrieval in self._retrievals(candidate).values())
        return super().tokens(candidate) + num_retrieved

    def num_demos(self, candidate: Candidate) -> int:
        num_retrieved = sum(retrieval.num_demos for retrieval in self._retrievals(candidate).values())
        return super().num_demos(candidate) + num_retrieved

    def build(self, candidate: Candidate, *, guarded: bool = False) -> dspy.Module:
        program = super().build(candidate, guarded=guarded)
        return retrieve_in(program, self._retrievals(candidate, guarded=guarded))

    def fingerprint(self, candidate: Candidate, inputs: Mapping[str, Any] | None = None) -> str:
        """Return a digest of a candidate's prompts for the inputs.

        If retrieved demos cannot be determined before the call, return a digest of the program and
        its retrieval settings.
        """
        if not isinstance(candidate, WholeProgram) or candidate in self.rivals:
            return super().fingerprint(candidate)
        retrievals = self._retrievals(candidate)
        if inputs is not None and self._passes_inputs_on:
            # Ignore errors of the embedder here, because the call will report them.
            with suppress(Exception):
                demos = {
                    name: retrieval.demos_for(inputs, without=inputs)
                    for name, retrieval in retrievals.items()
                }
                return self._digest(demos)
        if candidate not in self._program_digests:
            facts = {name: retrieval.facts for name, retrieval in retrievals.items()}
            # The digest of a program ignores predictors in private attributes, so include all
            # predictors.
            self._program_digests[candidate] = digest([self.program, self._predictors, facts])
        return self._program_digests[candidate]

    def _retrievals(self, candidate: Candidate, *, guarded: bool = False) -> dict[str, Retrieval]:
        variation = self.variation(candidate)
        if variation is None:
            return {}
        return {name: Retrieval(pool, variation, guarded) for name, pool in self.retrieval_pools.items()}

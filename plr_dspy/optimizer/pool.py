"""The pool of demos that a compile chooses from: the student's own, labelled examples, and bootstrapped ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dspy

from plr_dspy.optimizer.bootstrapping import Attempt
from plr_dspy.optimizer.cost_estimate import TOKENIZER, offline_litellm
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.identity import digest
from plr_dspy.programs.prompts import PromptRenderer
from plr_dspy.programs.slots import OWN, PooledDemo
from plr_dspy.programs.splits import label_keys, mixed, value_key

KINDS = ("both", "labeled", "bootstrapped")
"""Kinds of demos that are made of the trainset."""

POOL_SHARE, LARGEST_POOL = 0.25, 50
"""Share of the trainset that demos are made of, and the most examples.

The other three quarters score: chance moves a score by 1 / sqrt(4 n), which is 15 % more than on all examples. A search
of some hundred calls tells more than 50 demos apart no better than it tells 50."""


def pool_part(
    trainset: Sequence[dspy.Example], valset: Sequence[dspy.Example], rng: random.Random
) -> list[int]:
    """Numbers of the examples that demos are made of, no two with the same inputs, the classes evenly mixed.

    They are the same ones, in the same order, whatever the order of the trainset. Examples with the same inputs count
    as one for the share, so that duplicates leave enough to score. Examples whose inputs the valset has are left to it.
    """
    keys = [value_key(dict(example.inputs().items())) for example in (*trainset, *valset)]
    taken = set(keys[len(trainset) :])
    number = min(LARGEST_POOL, round(POOL_SHARE * len({*keys} - taken)))
    chosen: list[int] = []
    by_content = sorted(range(len(trainset)), key=[digest(example) for example in trainset].__getitem__)
    for index in mixed(by_content, label_keys(trainset), rng, balanced=True):
        if len(chosen) < number and keys[index] not in taken:
            taken.add(keys[index])
            chosen.append(index)
    return chosen


@dataclass(frozen=True)
class Sources:
    """Where the demos of a pool come from.

    Attributes:
        labelled: Examples of the trainset, by their numbers.
        attempts: At bootstrapped demos.
        given: The user's own list.
    """

    labelled: Mapping[int, dspy.Example]
    attempts: Sequence[Attempt] = ()
    given: Sequence[Any] = ()

    def named(self, predictor: str) -> list[tuple[Any, str]]:
        """The demos for a predictor, with their origins; bootstrapped ones come first."""
        made = [
            (attempt.demos[predictor], f"bootstrapped from trainset[{attempt.example}]")
            for attempt in self.attempts
            if predictor in attempt.demos
        ]
        labelled = [(example, f"trainset[{number}]") for number, example in self.labelled.items()]
        return made + labelled + [(demo, f"candidates[{i}]") for i, demo in enumerate(self.given)]


def pools_of(program: dspy.Module, sources: Sources) -> dict[str, list[PooledDemo]]:
    """The pool of each predictor: what its prompt shows, each text once, the student's own demos first.

    Args:
        program: A copy of the student.
        sources: Of further demos.
    """
    renderer, pools = PromptRenderer(), {}
    with offline_litellm() as litellm:
        # Images count as so many tokens each, so that none is downloaded.
        count = partial(litellm.token_counter, TOKENIZER, use_default_image_token_count=True)
        for name, predictor in named_predictors(program):
            nothing = renderer.render(predictor, [])
            tokens_before = count(messages=renderer.messages(predictor, []))
            seen, pool = {nothing}, []
            own = [(demo, OWN) for demo in predictor.demos]
            for demo, origin in [*own, *sources.named(name)]:
                text = renderer.render(predictor, [demo])
                if text == nothing or (text in seen and origin != OWN):
                    continue
                seen.add(text)
                tokens = count(messages=renderer.messages(predictor, [demo])) - tokens_before
                pool.append(PooledDemo(demo, origin, int(tokens)))
            pools[name] = pool
    return pools

"""What PLFewShot chooses from: the student's own demos, labelled examples, and bootstrapped demos."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import dspy

from plr_dspy.labels.outputs import label_outputs
from plr_dspy.optimizer.cost_estimate import token_counter
from plr_dspy.optimizer.job import Attempt
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.identity import digest
from plr_dspy.programs.slots import OWN, PooledDemo, as_text, demo_messages
from plr_dspy.programs.splits import label_keys, mixed, source_of

POOL_SHARE, LARGEST_POOL = 0.25, 50
"""Share of the trainset that demos are made of, and the most examples.

The other three quarters score: chance moves a score by 1 / sqrt(4 n), which is 15 % more than on all examples. A search
of some hundred calls tells more than 50 demos apart no better than it tells 50."""

NOT_KNOWN = "..."
"""Stands for what a teacher will answer."""


def pool_part(
    trainset: Sequence[dspy.Example], valset: Sequence[dspy.Example], rng: random.Random
) -> list[int]:
    """Numbers of the examples that demos are made of, no two with the same inputs, the classes evenly mixed.

    They are the same ones, in the same order, whatever the order of the trainset. Examples with the same inputs count
    as one for the share, so that duplicates leave enough to score. Examples whose inputs the valset has are left to it.
    """
    keys = [source_of(example.inputs()) for example in (*trainset, *valset)]
    taken = set(keys[len(trainset) :])
    number = min(LARGEST_POOL, round(POOL_SHARE * len({*keys} - taken)))
    chosen: list[int] = []
    by_content = sorted(range(len(trainset)), key=[digest(example) for example in trainset].__getitem__)
    for index in mixed(by_content, label_keys(trainset), rng, balanced=True):
        if len(chosen) < number and keys[index] not in taken:
            taken.add(keys[index])
            chosen.append(index)
    return chosen


def labels_say_all(program: dspy.Module, part: Mapping[int, dspy.Example]) -> bool:
    """Whether all that the predictors answer are labels which the examples have: a right answer adds nothing."""
    predictors = program.predictors()
    outputs = {name for predictor in predictors for name in predictor.signature.output_fields}
    labels = {output.name for predictor in predictors for output in label_outputs("", predictor)}
    return labels == outputs and all(outputs <= dict(example).keys() for example in part.values())


def stand_ins(program: dspy.Module, part: Mapping[int, dspy.Example], number: int) -> list[Attempt]:
    """Return so many attempts before they are made, with demos for predictors whose fields the examples lack."""
    needed = {name: predictor.signature.fields for name, predictor in named_predictors(program)}
    attempts = []
    for index, example in islice(part.items(), number):
        known = {field: value for field, value in example.items() if value is not None}
        demos = {
            name: dspy.Example({**dict.fromkeys(fields, NOT_KNOWN), **known})
            for name, fields in needed.items()
            if not fields.keys() <= known.keys()
        }
        attempts.append(Attempt(index, ("", str(index)), demos))
    return attempts


def pools_of(
    program: dspy.Module,
    *,
    labelled: Mapping[int, dspy.Example],
    attempts: Sequence[Attempt],
    given: Sequence[Any],
) -> dict[str, list[PooledDemo]]:
    """The pool of each predictor: what its prompt shows, each text once, the student's own demos first.

    Then come what attempts made, labelled examples by their numbers in the trainset, and the list that the user gave.
    """
    count, pools = token_counter(), {}
    others = [(example, f"trainset[{number}]") for number, example in labelled.items()]
    others += [(demo, f"candidates[{i}]") for i, demo in enumerate(given)]
    for name, predictor in named_predictors(program):
        own = [(demo, OWN) for demo in predictor.demos]
        made = [
            (a.demos[name], f"bootstrapped from trainset[{a.example}]") for a in attempts if name in a.demos
        ]
        without_demos = demo_messages(predictor, [])
        tokens_before, nothing = count(messages=without_demos), as_text(without_demos)
        seen, pool = {nothing}, []
        for demo, origin in [*own, *made, *others]:
            messages = demo_messages(predictor, [demo])
            text = as_text(messages)
            if text != nothing and (text not in seen or origin == OWN):
                seen.add(text)
                pool.append(PooledDemo(demo, origin, int(count(messages=messages) - tokens_before)))
        pools[name] = pool
    return pools

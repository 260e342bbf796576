"""Train and selection splits of a program's examples, without those that its demos show."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dspy

TRAIN_SHARE = 0.8


def without_demos(examples: Sequence[dspy.Example], demos: Iterable[Any]) -> list[dspy.Example]:
    """The examples whose inputs no demo shows: with its answer in the prompt an example proves nothing.

    Args:
        examples: Examples with inputs set.
        demos: Examples or dicts; bootstrapped ones hold more fields than the inputs.
    """
    shown: dict[tuple[str, ...], set[str]] = defaultdict(set)
    demos = [dict(demo) if isinstance(demo, Mapping) else dict(demo.items()) for demo in demos]
    kept = []
    for example in examples:
        inputs = dict(example.inputs().items())
        names = tuple(sorted(inputs))
        if names not in shown:
            shown[names] = {
                _key({name: demo[name] for name in names}) for demo in demos if all(n in demo for n in names)
            }
        if _key(inputs) not in shown[names]:
            kept.append(example)
    return kept


def split(
    examples: Sequence[dspy.Example], rng: random.Random, *, balanced: bool
) -> tuple[list[dspy.Example], list[dspy.Example]]:
    """Shuffle, and split into train (80 %) and selection (20 %).

    Args:
        examples: At least two.
        rng: Decides the shuffle.
        balanced: Mix the classes evenly, so that every prefix of either split has the proportions
            of the whole; orders that favour one class are then not favoured by chance. Without
            effect where the labels are no classes.
    """
    shuffled = list(examples)
    rng.shuffle(shuffled)
    num_selection = min(max(1, round(len(shuffled) * (1 - TRAIN_SHARE))), len(shuffled) - 1)
    if not balanced:
        return shuffled[num_selection:], shuffled[:num_selection]
    mixed = interleave(shuffled)
    # Every fifth one, spread evenly over the mixed sequence.
    chosen = {int((i + 0.5) * len(mixed) / num_selection) for i in range(num_selection)}
    train = [example for i, example in enumerate(mixed) if i not in chosen]
    selection = [mixed[i] for i in sorted(chosen)]
    return interleave(train), interleave(selection)


def interleave(examples: Sequence[dspy.Example]) -> list[dspy.Example]:
    """Reorder so that each class is spread evenly; order within a class stays.

    Labels count as classes when there are at most a quarter as many as examples.
    """
    classes: dict[str, list[dspy.Example]] = defaultdict(list)
    for example in examples:
        classes[_key(dict(example.labels().items()))].append(example)
    if not 1 < len(classes) <= len(examples) / 4:
        return list(examples)
    placed = []
    for rank, members in enumerate(classes.values()):
        for i, example in enumerate(members):
            placed.append(((i + 0.5) / len(members), rank, example))
    return [example for *_, example in sorted(placed, key=lambda entry: entry[:2])]


def _key(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), sort_keys=True, default=repr)

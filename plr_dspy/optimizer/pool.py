"""What PLFewShot chooses from: the student's own demos, labelled examples, and bootstrapped demos."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import dspy

from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import label_outputs
from plr_dspy.optimizer.bootstrapping import Attempt
from plr_dspy.optimizer.cost_estimate import TOKENIZER, offline_litellm
from plr_dspy.optimizer.job import checked_copy, warn_of_few_examples
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.identity import digest
from plr_dspy.programs.prompts import PromptRenderer
from plr_dspy.programs.slots import OWN, PooledDemo
from plr_dspy.programs.splits import Splits, check_splits, label_keys, make_splits, mixed, value_key

if TYPE_CHECKING:
    from plr_dspy.optimizer.fewshot import PLFewShot

KINDS = ("both", "labeled", "bootstrapped")
"""Kinds of demos that are made of the trainset."""

POOL_SHARE, LARGEST_POOL = 0.25, 50
"""Share of the trainset that demos are made of, and the most examples.

The other three quarters score: chance moves a score by 1 / sqrt(4 n), which is 15 % more than on all examples. A search
of some hundred calls tells more than 50 demos apart no better than it tells 50."""

NOT_KNOWN = "..."
"""Stands for what a teacher will answer."""


@dataclass(frozen=True)
class Draft:
    """A compile as far as it is known before demos are made.

    Attributes:
        program: A copy of the student.
        part: The examples of the trainset that demos are made of, by their numbers.
        given: The user's own list of demos.
        splits: The examples that score.
        seed: Of everything random.
    """

    program: dspy.Module
    part: dict[int, dspy.Example]
    given: tuple[Any, ...]
    splits: Splits
    seed: int

    @property
    def labels_say_all(self) -> bool:
        """Whether all that the predictors answer are labels which the examples have: a right answer adds nothing."""
        predictors = [predictor for _, predictor in named_predictors(self.program)]
        outputs = {name for predictor in predictors for name in predictor.signature.output_fields}
        labels = {output.name for predictor in predictors for output in label_outputs("", predictor)}
        return labels == outputs and all(
            outputs <= example.keys() for example in map(dict, self.part.values())
        )

    def stand_ins(self, number: int) -> list[Attempt]:
        """Return so many attempts before they are made, with demos for predictors whose fields the examples lack."""
        needed = {name: predictor.signature.fields for name, predictor in named_predictors(self.program)}
        attempts = []
        for index, example in islice(self.part.items(), number):
            known = {field: value for field, value in example.items() if value is not None}
            demos = {
                name: dspy.Example({**dict.fromkeys(fields, NOT_KNOWN), **known})
                for name, fields in needed.items()
                if not fields.keys() <= known.keys()
            }
            attempts.append(Attempt(index, ("", str(index)), demos))
        return attempts


def make_draft(
    optimizer: PLFewShot,
    student: dspy.Module,
    *,
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
    seed: int,
) -> Draft:
    """Check the arguments, and split the examples into those that become demos and those that score.

    Args:
        optimizer: Which one.
        student, trainset, valset, seed: Of the compile.

    Raises:
        TypeError, ValueError: for bad arguments.
    """
    valset, candidates = valset or [], optimizer.candidates
    program = checked_copy(optimizer, student, trainset=trainset, valset=valset)
    rng = random.Random(seed)
    from_list = not isinstance(candidates, str)
    part = {} if from_list else {i: trainset[i] for i in pool_part(trainset, valset, rng)}
    given = tuple(candidates) if from_list else ()
    own = [demo for _, predictor in named_predictors(program) for demo in predictor.demos]
    if not (from_list or part or own):
        raise ValueError(
            f"trainset must hold more examples with different inputs: a quarter of them becomes demos, and of these "
            f"{len(trainset)} examples none; pass 100 or more, or demos of your own in candidates"
        )
    splits = make_splits(trainset, valset, [*own, *part.values(), *given], rng, balanced=optimizer.balanced)
    try:
        check_splits(splits, num_trainset=len(trainset), num_valset=len(valset))
    except ValueError as error:
        if not from_list:
            raise
        raise ValueError(f"{error}, or leave some of these out of candidates") from error
    num_usable = len(splits.train) + len(splits.selection)
    warn_of_few_examples(num_usable, len(trainset) + len(valset), optimizer)
    return Draft(program, part, given, splits, seed)


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


def pools_of(
    program: dspy.Module,
    *,
    labelled: Mapping[int, dspy.Example],
    attempts: Sequence[Attempt],
    given: Sequence[Any],
) -> dict[str, list[PooledDemo]]:
    """The pool of each predictor: what its prompt shows, each text once, the student's own demos first.

    Args:
        program: A copy of the student.
        labelled: Examples of the trainset, by their numbers.
        attempts: At bootstrapped demos.
        given: The user's own list.
    """
    renderer, pools = PromptRenderer(), {}
    others = [(example, f"trainset[{number}]") for number, example in labelled.items()]
    others += [(demo, f"candidates[{i}]") for i, demo in enumerate(given)]
    with offline_litellm() as litellm:
        # Images count as so many tokens each, so that none is downloaded.
        count = partial(litellm.token_counter, TOKENIZER, use_default_image_token_count=True)
        for name, predictor in named_predictors(program):
            nothing = renderer.render(predictor, [])
            tokens_before = count(messages=renderer.messages(predictor, []))
            seen, pool = {nothing}, []
            own = [(demo, OWN) for demo in predictor.demos]
            made = [
                (each.demos[name], f"bootstrapped from trainset[{each.example}]")
                for each in attempts
                if name in each.demos
            ]
            for demo, origin in [*own, *made, *others]:
                text = renderer.render(predictor, [demo])
                if text == nothing or (text in seen and origin != OWN):
                    continue
                seen.add(text)
                tokens = count(messages=renderer.messages(predictor, [demo])) - tokens_before
                pool.append(PooledDemo(demo, origin, int(tokens)))
            pools[name] = pool
    return pools


def check_candidates(candidates: Any) -> str | list[Any]:
    """The argument as it was passed, a list as a list of its own.

    Raises:
        TypeError, ValueError: when it is neither the name of a kind nor a list of demos.
    """
    expected = f"candidates must be one of {list(KINDS)}, or a list of demos"
    if isinstance(candidates, str):
        if candidates not in KINDS:
            raise ValueError(f"{expected}; got {candidates!r}")
        return candidates
    if not isinstance(candidates, Sequence) or not candidates:
        raise TypeError(f"{expected}; got {candidates!r}")
    for number, demo in enumerate(candidates):
        if not isinstance(demo, (dspy.Example, Mapping)):
            raise TypeError(
                f"candidates[{number}] must be a dspy.Example or a dict; got {type(demo).__name__}"
            )
    return list(candidates)


def check_teacher(teacher: Any) -> dspy.Module | None:
    """The teacher; of a list, as other optimizers pass one, the first.

    Raises:
        TypeError: when it is no program.
    """
    if isinstance(teacher, (list, tuple)):
        teacher = teacher[0] if teacher else None
    if isinstance(teacher, CalibratedProgram):
        teacher = teacher.program  # which has the student's structure
    if teacher is not None and not isinstance(teacher, dspy.Module):
        raise TypeError(f"teacher must be a dspy.Module; got {type(teacher).__name__}")
    return teacher

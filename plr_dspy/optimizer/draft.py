"""The first step of PLFewShot: checks the arguments, and splits the examples into demos and those that score."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import dspy

from plr_dspy.compilation.plan import NOTHING_TO_DO
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.outputs import label_outputs
from plr_dspy.optimizer.bootstrapping import Attempt
from plr_dspy.optimizer.job import Job, Optimizer, checked_copy, warn_of_few_examples
from plr_dspy.optimizer.pool import KINDS, Sources, pool_part, pools_of
from plr_dspy.programs.checks import demo_obstacle
from plr_dspy.programs.copies import ProgramFactory, named_predictors
from plr_dspy.programs.slots import OWN, PoolSlots
from plr_dspy.programs.splits import Splits, check_splits, make_splits

logger = logging.getLogger(__name__)

NOT_KNOWN = "..."
"""Stands for what a teacher will answer."""


@dataclass(frozen=True)
class Limits:
    """What may be chosen.

    Attributes:
        min_demos, max_demos: Demos that a predictor shows.
        max_tokens: Of all demos that are shown together; None for no limit.
    """

    min_demos: int
    max_demos: int
    max_tokens: int | None


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
    optimizer: Optimizer,
    student: dspy.Module,
    *,
    candidates: str | Sequence[Any],
    trainset: Sequence[dspy.Example],
    valset: Sequence[dspy.Example] | None,
    seed: int,
) -> Draft:
    """Check the arguments, and split the examples into those that become demos and those that score.

    Args:
        optimizer: Which one.
        student, trainset, valset, seed: Of the compile.
        candidates: As in `PLFewShot`.

    Raises:
        TypeError, ValueError: for bad arguments.
    """
    valset = [] if valset is None else valset
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


def make_job(
    optimizer: Optimizer,
    draft: Draft,
    *,
    labelled: Mapping[int, dspy.Example],
    attempts: Sequence[Attempt],
    made: bool,
    limits: Limits,
) -> Job:
    """Lay out the search among the student's demos and these.

    Args:
        optimizer: Which one.
        draft: What it works on.
        labelled: Examples that are demos, by their numbers.
        attempts: At bootstrapped demos.
        made: Whether they have been made, and not stand for those that will be.
        limits: What may be chosen.

    Raises:
        ValueError: when there is no demo, or none that keeps to the limits.
    """
    pools = pools_of(draft.program, Sources(labelled, attempts, draft.given))
    if not any(pools.values()) and not attempts:
        raise ValueError(
            "there are no demos to choose from: the student has none, and no prompt would show the candidates. Pass "
            "more examples in trainset (a quarter of it becomes demos), or candidates with the fields of the signature"
        )
    slots = PoolSlots(
        draft.program,
        pools,
        min_demos=limits.min_demos,
        max_demos=limits.max_demos,
        max_tokens=limits.max_tokens,
    )
    if not made:
        others = {
            slot.predictor: [each.demo for each in slot.pool if each.origin != OWN] for slot in slots.slots
        }
        if obstacle := demo_obstacle(ProgramFactory(draft.program).build(others)):
            logger.warning("of the demos to choose from, %s", obstacle)
    splits, plan = draft.splits, NOTHING_TO_DO
    num_train, num_selection = len(splits.train), len(splits.selection)
    if slots.space.num_distinct > 1:
        plan = optimizer.plan(
            num_train=num_train, num_selection=num_selection, num_distinct=slots.space.num_distinct
        )
    known = tuple(attempts) if made else ()
    return Job(optimizer, draft.seed, draft.program, slots, splits, plan, slots.original, attempts=known)


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

"""A check for demos that the adapter does not show in any prompt, for example because a field is missing."""

import logging
from collections.abc import Sequence
from typing import Any

import dspy

from plr_dspy.programs.slots import demo_texts

logger = logging.getLogger(__name__)


def hidden_demos(predictor: dspy.Predict, demos: Sequence[Any]) -> list[int]:
    """Return the indices of the demos that the predictor's prompts do not show."""
    return [i for i, text in enumerate(demo_texts(predictor, demos)) if not text]


def missing_fields(predictor: dspy.Predict, demo: Any) -> list[str]:
    """Return the names of the predictor's fields that are missing or None in a demo."""
    return [name for name in predictor.signature.fields if demo.get(name) is None]


def warn_of_hidden_demos(program: dspy.Module, program_name: str) -> None:
    """Log one warning about all demos that a program's prompts do not show."""
    phrases = []
    for name, predictor in program.named_predictors():
        hidden = hidden_demos(predictor, predictor.demos)
        if not hidden:
            continue
        phrase = f"{len(hidden)} of {len(predictor.demos)} demos of predictor {name!r}"
        missing = missing_fields(predictor, predictor.demos[hidden[0]])
        if missing:
            phrase += f" (demo {hidden[0]} has no {' and no '.join(map(repr, missing))})"
        phrases.append(phrase)
    if not phrases:
        return
    warning = f"in {program_name}, the adapter leaves out {', '.join(phrases)}"
    if len(program.predictors()) > 1:
        warning += ". Labeled examples often lack fields of inner predictors"
    else:
        warning += ": complete these demos, or remove them"
    logger.warning("%s", warning)


def warn_if_none_is_shown(program: dspy.Module, demos: Sequence[Any]) -> None:
    """Log a warning if a program's only predictor can show none of `demos`.

    Ignore programs with several predictors, because such programs often cannot show examples as demos.
    """
    predictors = program.predictors()
    if not demos or len(predictors) > 1 or len(hidden_demos(predictors[0], demos)) < len(demos):
        return
    fix = "use another adapter"
    missing = missing_fields(predictors[0], demos[0])
    if missing:
        fix = f"add the missing fields to the examples (the first one lacks {' and '.join(map(repr, missing))})"
    logger.warning(
        "the adapter can show none of the %d examples that may become demos: %s. Otherwise, only other demos, such "
        "as the student's own, can be tried",
        len(demos),
        fix,
    )

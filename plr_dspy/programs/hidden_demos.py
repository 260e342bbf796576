"""A check for demos that the adapter does not show in any prompt, for example because a field is missing."""

import logging
from collections.abc import Sequence
from typing import Any

import dspy

from plr_dspy.programs.slots import as_text, messages_of

logger = logging.getLogger(__name__)


def hidden_demos(predictor: dspy.Predict, demos: Sequence[Any]) -> list[int]:
    """Return the indices of the demos that the predictor's prompts do not show."""
    no_text = as_text(messages_of(predictor, []))
    return [i for i, demo in enumerate(demos) if as_text(messages_of(predictor, [demo])) == no_text]


def missing_fields(predictor: dspy.Predict, demo: Any) -> list[str]:
    """Return the names of the fields that a demo lacks."""
    return [name for name in predictor.signature.fields if demo.get(name) is None]


def warn_of_hidden_demos(program: dspy.Module, program_name: str) -> None:
    """Log a warning about each predictor with demos that its prompts do not show."""
    for name, predictor in program.named_predictors():
        hidden = hidden_demos(predictor, predictor.demos)
        if not hidden:
            continue
        missing = missing_fields(predictor, predictor.demos[hidden[0]])
        reason = f": demo {hidden[0]} has no {' and no '.join(map(repr, missing))}" if missing else ""
        logger.warning(
            "%s: the adapter does not show demos %s of predictor %r in any prompt%s",
            program_name,
            hidden,
            name,
            reason,
        )


def warn_if_none_is_shown(program: dspy.Module, demos: Sequence[Any]) -> None:
    """Log a warning if the only predictor of a program shows none of these demos.

    If there are several predictors, it is usual that they show only bootstrapped demos.
    """
    predictors = program.predictors()
    if not demos or len(predictors) > 1 or len(hidden_demos(predictors[0], demos)) < len(demos):
        return
    missing = missing_fields(predictors[0], demos[0])
    logger.warning(
        "the adapter shows none of the %d examples that may become demos, because %s is missing: add this field to the "
        "examples, or only demos of the student and its own answers can be chosen",
        len(demos),
        " and ".join(map(repr, missing)) or "a field",
    )

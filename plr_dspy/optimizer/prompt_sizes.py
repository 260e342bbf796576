"""Token counts of prompts without inputs, for reports, limits and estimates."""

from collections.abc import Sequence
from typing import Any

import dspy

from plr_dspy.programs.attached_results import sub_modules
from plr_dspy.programs.slots import PoolSlots, messages_of
from plr_dspy.programs.tokens import token_counter
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.search.space import Candidate


def tokens_before_inputs(predictor: dspy.Predict, demos: Sequence[Any]) -> int:
    """Return the number of tokens in a predictor's prompt with these fixed demos and empty inputs."""
    inputs = dict.fromkeys(predictor.signature.input_fields, "")
    return token_counter()(messages_of(predictor, demos, inputs))


def tokens_of_demos(predictor: dspy.Predict, demos: Sequence[Any]) -> list[int]:
    """Return the number of tokens that each demo adds to a predictor's prompt."""
    try:
        without_demos = tokens_before_inputs(predictor, [])
        return [tokens_before_inputs(predictor, [demo]) - without_demos for demo in demos]
    except Exception:  # If the adapter needs real inputs, count only the messages with demos.
        count = token_counter()
        no_demos = count(messages_of(predictor, []))
        return [count(messages_of(predictor, [demo])) - no_demos for demo in demos]


def retrieved_tokens(predictor: dspy.Predict) -> int:
    """Return the mean number of tokens in the demos that a predictor retrieves, or 0 if it retrieves none."""
    return predictor.retrieval.num_tokens if isinstance(predictor, RetrievingPredict) else 0


def prompt_tokens(slots: PoolSlots, candidate: Candidate, program: dspy.Module) -> int:
    """Return the number of tokens in the instructions and demos of a candidate's prompts.

    `program` is the candidate's program. If its prompts cannot be built, count only the demos' tokens.
    """
    try:
        predictors = [part for _, part in sub_modules(program, dspy.Predict)]
        return sum(
            tokens_before_inputs(predictor, predictor.demos) + retrieved_tokens(predictor)
            for predictor in predictors
        )
    except Exception:  # If the adapter or litellm fails, the number of demo tokens is still useful.
        return slots.tokens(candidate)

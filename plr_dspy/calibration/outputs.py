"""The output of a program that is calibrated, and what replies say of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dspy
import numpy as np
from numpy.typing import NDArray

from plr_dspy.label_probabilities.reader import Decision, Reading, reading
from plr_dspy.label_probabilities.requests import LogprobRequests
from plr_dspy.lm.finite_outputs import label_text
from plr_dspy.programs.copies import named_predictors
from plr_dspy.programs.label_scores import REANCHOR, LabelOutput, label_output

PURPOSE = "calibration"

PROBABILITIES = "probabilities"
"""Field of a prediction that calibrated programs add."""


def finite_output_of(program: dspy.Module, predictor: str | None) -> LabelOutput:
    """Find the output that is calibrated.

    Args:
        program: It has one.
        predictor: Name of the predictor that has it; None where only one does.

    Raises:
        ValueError: when there is no such output, or more than one, or one that the probabilities would replace.
    """
    predictors = dict(named_predictors(program))
    names = list(predictors)
    if predictor is not None and predictor not in names:
        raise ValueError(f"predictor must be one of {names}; got {predictor!r}")
    output = label_output(program, only=predictor)
    if isinstance(output, str) and REANCHOR in output:
        raise ValueError(f"calibration is not possible: {output}")
    if isinstance(output, str):
        cure = "" if predictor is not None or len(names) == 1 else f", or pass predictor= with one of {names}"
        raise ValueError(
            f"calibration needs an output with few possible values: {output}. Give exactly one output such a type{cure}"
        )
    if any(PROBABILITIES in each.signature.output_fields for each in predictors.values()):
        raise ValueError(
            f"calibrated predictions hold the probabilities of labels as {PROBABILITIES!r}, and the program has an "
            "output of this name: rename it"
        )
    return output


def output_reader(
    program: dspy.Module,
    output: LabelOutput,
    *,
    requests: LogprobRequests,
    decision: Decision | None,
) -> Any:
    """Return the adapter of this context as it reads, and may decide, the output of a program.

    Args:
        program: Its calls of the predictor are read, those of copies that it makes on the way (`dspy.BestOfN`) too.
        output: The output.
        requests, decision: As in `reading`.
    """
    predictors = dict(named_predictors(program))
    own = predictors.pop(output.predictor)
    others = {id(other) for other in predictors.values()}

    def reads(caller: Any) -> bool:
        return caller is own or (getattr(caller, "stage", None) == own.stage and id(caller) not in others)

    adapter = dspy.settings.adapter or dspy.ChatAdapter()
    return reading(
        adapter,
        output.name,
        output.labels,
        requests=requests,
        decision=decision,
        reads=reads,
        stated=output.stated,
    )


def reading_of_answer(reader: Any, output: LabelOutput, answer: Any) -> Reading | None:
    """Return what the reply behind a program's answer said of labels; None where that is nothing.

    Args:
        reader: Of the program call.
        output: The output.
        answer: What the program returned. Where it made several calls, the last of those that gave the same label
            counts; the last of all where it holds no label, and none where no call gave its label.
    """
    found: list[Reading | None] = reader.readings
    value = answer.get(output.name) if isinstance(answer, dspy.Prediction) else None
    label = label_text(output.labels, value)
    same = [each for each in found if each is not None and each.label == label]
    if label is None:
        return found[-1] if found else None
    return same[-1] if same else None


def prior_shares(
    prior: Mapping[Any, float], output: LabelOutput, *, name: str = "prior"
) -> NDArray[np.float64]:
    """The shares of labels in the order of an output's labels.

    Args:
        prior: Shares by label, either its value or what demos call it.
        output: The labels.
        name: What users call the shares.

    Raises:
        ValueError: unless each label has a share above 0, and they sum to 1.
    """
    texts = {text: prior.get(value, prior.get(text)) for text, value in output.labels.items()}
    missing = [text for text, share in texts.items() if share is None]
    if missing or len(prior) != len(texts):
        raise ValueError(f"{name} must have a share for each of the labels {list(texts)}; got {dict(prior)}")
    try:
        shares = np.array([float(share) for share in texts.values() if share is not None])
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold numbers; got {dict(prior)}") from None
    if not (np.isfinite(shares).all() and (shares > 0).all()):
        raise ValueError(f"{name} must have a share above 0 for each label; got {dict(prior)}")
    if abs(shares.sum() - 1.0) > 1e-3:
        raise ValueError(f"{name} must sum to 1; {dict(prior)} sums to {shares.sum():g}: divide by that")
    normalised: NDArray[np.float64] = shares / shares.sum()
    return normalised


def right_labels(examples: Sequence[dspy.Example], output: LabelOutput) -> NDArray[np.int64]:
    """Numbers of the labels that examples have.

    Raises:
        ValueError: when one has none of them, or all have the same.
    """
    texts, cure = list(output.labels), "or pass method='batch', which needs no labels"
    numbers = []
    for example in examples:
        value = example.get(output.name)
        text = label_text(output.labels, value) or value  # Data may hold what demos call an enum's member.
        if text not in texts:
            raise ValueError(
                f"method='linear' needs examples whose {output.name!r} is one of {texts}; got {value!r}: give all "
                f"examples one, {cure}"
            )
        numbers.append(texts.index(text))
    if len(set(numbers)) == 1:
        raise ValueError(
            f"method='linear' needs examples with different labels; all {len(numbers)} have "
            f"{texts[numbers[0]]!r}: pass some with another, {cure}"
        )
    return np.array(numbers)

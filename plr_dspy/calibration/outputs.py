"""The output of a program that is calibrated, and what replies say of its labels."""

from __future__ import annotations

import logging
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
from plr_dspy.statistics.calibration import is_far_from_even, likely_shares

logger = logging.getLogger(__name__)

PURPOSE = "calibration"

PROBABILITIES = "probabilities"
"""Field of a prediction that calibrated programs add."""

ONE_SIDED = 3
"""Demos that are all of one label, from which on that is told."""


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
    prior: Mapping[Any, float | None], labels: Mapping[str, Any], *, name: str = "prior"
) -> NDArray[np.float64]:
    """The shares ``[L]`` of labels, which sum to 1; shares that were rounded are taken.

    Args:
        prior: Shares by label, either its value or what demos call it.
        labels: Values ``[L]`` of the labels by what demos call them.
        name: What users call the shares.

    Raises:
        ValueError: unless each label has a share above 0, and they sum to 1.
    """
    texts = {text: prior.get(value, prior.get(text)) for text, value in labels.items()}
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


def warn_of_labels(program: dspy.Module, output: LabelOutput, counts: NDArray[np.float64]) -> None:
    """Warn where demos are all of one label, or the labels of the examples are far from equally frequent.

    Args:
        program: Has the demos.
        output: Its labels.
        counts: Examples that each label is right for, ``[L]``.
    """
    texts = list(output.labels)
    demos = right_labels(dict(named_predictors(program))[output.predictor].demos, output)
    if len(demos) >= ONE_SIDED and len(set(demos)) == 1 and demos[0] >= 0 and (counts > 0).sum() > 1:
        logger.warning(
            "all %d demos have the label %r, so the model may answer it too often: give demos of several labels, as "
            "PLFewShot chooses them",
            len(demos),
            texts[demos[0]],
        )
    if len(likely_shares(counts)) > 1 and is_far_from_even(counts):
        most = int(counts.argmax())
        logger.warning(
            "%.0f %% of the examples have the label %r: a program that always answers it has that accuracy, so "
            "compare with it",
            100.0 * counts[most] / counts.sum(),
            texts[most],
        )


def right_labels(examples: Sequence[dspy.Example], output: LabelOutput) -> NDArray[np.int64]:
    """Numbers of the labels that examples have, ``[N]``; -1 for none."""
    texts = list(output.labels)
    values = [example.get(output.name) for example in examples]
    # Data may hold what demos call an enum's member.
    told = [label_text(output.labels, value) or value for value in values]
    return np.array([texts.index(text) if text in texts else -1 for text in told], dtype=np.int64)

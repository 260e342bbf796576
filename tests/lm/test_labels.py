"""Which outputs have a finite label set."""

import enum
from typing import Literal, Optional

import dspy
import pytest

from plr_dspy.lm.finite_outputs import finite_output, labels_of


class Topic(enum.Enum):
    SPORT = "sport"
    WORLD = "world news"


def signature(**outputs):
    fields = {"text": (str, dspy.InputField())}
    return dspy.Signature(fields | {name: (kind, dspy.OutputField()) for name, kind in outputs.items()})


@pytest.mark.parametrize(
    ("annotation", "labels"),
    [
        (Literal["positive", "negative"], {"positive": "positive", "negative": "negative"}),
        (Literal[1, 2, 3], {"1": 1, "2": 2, "3": 3}),
        (bool, {"True": True, "False": False}),
        (Topic, {"sport": Topic.SPORT, "world news": Topic.WORLD}),
        (Optional[Literal["yes", "no"]], {"yes": "yes", "no": "no"}),  # noqa: UP045
        (Literal["yes", "no"] | None, {"yes": "yes", "no": "no"}),
    ],
)
def test_a_field_with_few_values_is_found_beside_others(annotation, labels):
    found = finite_output(signature(reasoning=str, answer=annotation), purpose="LocalE")
    assert found == ("answer", labels)


@pytest.mark.parametrize("annotation", [str, int, float, list[str], str | None])
def test_open_types_have_no_labels(annotation):
    assert labels_of(annotation) is None


@pytest.mark.parametrize(
    "outputs",
    [
        {"answer": str},
        {"answer": int},
        {"a": Literal["x", "y"], "b": Literal["x", "y"]},
        {"a": bool, "b": Topic},
    ],
)
def test_open_outputs_and_several_finite_ones_are_refused_by_name(outputs):
    with pytest.raises(ValueError, match=r"LocalE needs a finite label set.*PLReorder") as error:
        finite_output(signature(**outputs), purpose="LocalE")
    assert all(name in str(error.value) for name in outputs)


def test_one_label_is_refused():
    with pytest.raises(ValueError, match=r"PDO needs at least two labels.*'answer'.*only"):
        finite_output(signature(answer=Literal["only"]), purpose="PDO")

"""The classes of demos, such as labels, and the minimum number of demos that a prompt shows per class."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from plr_dspy.errors import UserError
from plr_dspy.labels.outputs import LabelOutput, label_outputs
from plr_dspy.lm.plain_text_adapter import name_of_label
from plr_dspy.search.quotas import Quotas

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DemoClasses:
    """The classes of a predictor's demos. Each value of one output is a class.

    Attributes:
        output: The output whose values are the classes.
        known: Indices of the labels that occur in demos before the first call. Labels that
            occur only in bootstrapped demos have no minimum, because prompts may not have room
            for these demos.
        minimum: Minimum number of demos for each known label. If a label has fewer demos, a
            prompt must show all of them.
    """

    output: LabelOutput
    known: frozenset[int]
    minimum: int

    def quotas(self, demos: Sequence[Any]) -> Quotas:
        """Return the class of each demo in a pool, and how many demos of each class a prompt must show."""
        classes = self.output.numbers(demos).tolist()
        counts = Counter(classes)
        minimums = []
        for number in range(len(self.output.labels)):
            minimums.append(min(self.minimum, counts[number]) if number in self.known else 0)
        return Quotas(tuple(classes), tuple(minimums))

    def num_missing(self, demos: Sequence[Any]) -> int:
        """Return how many more demos are needed to reach the minimum for every known label."""
        counts = Counter(self.output.numbers(demos).tolist())
        return sum(max(0, self.minimum - counts[number]) for number in self.known)

    def scarce(self, demos: Sequence[Any]) -> dict[str, int]:
        """Return the number of demos of each label that has fewer demos than the minimum, keyed by label."""
        counts = Counter(self.output.numbers(demos).tolist())
        scarce = {}
        for number, label in enumerate(self.output.labels):
            if counts[number] < self.minimum:
                scarce[label] = counts[number]
        return scarce


def demo_classes(
    program: dspy.Module, demos: Sequence[Any], *, minimum: int, max_demos: int
) -> dict[str, DemoClasses]:
    """Return the classes of each predictor whose demos have classes, keyed by predictor name.

    The classes are the values of a predictor's only output that is a Literal, an enum or a bool. If
    no predictor has exactly one such output, the classes are the values of each predictor's single
    output.

    Args:
        program: The student. Its own demos are also classified.
        demos: Other demos that the student's predictors may show.
        minimum: Minimum number of demos for each class.
        max_demos: Maximum number of demos per predictor.

    Raises:
        ValueError: If no predictor has such an output, if no demo has a class, or if
            `max_demos` is too small to show the minimum number of demos for every class.
    """
    outputs = _outputs(program, demos)
    if not outputs:
        raise UserError(
            f"min_per_class={minimum} needs a predictor that has only one output, or exactly one output that is a "
            "Literal, an enum or a bool; the student has no such predictor: change the signature, or omit min_per_class"
        )
    predictors = dict(program.named_predictors())
    classes = {}
    for name, output in outputs.items():
        numbers = output.numbers([*demos, *predictors[name].demos])
        known = frozenset(numbers[numbers >= 0].tolist())
        if known:
            classes[name] = DemoClasses(output, known, minimum)
        num_needed = minimum * len(known)
        if num_needed > max_demos:
            raise UserError(
                f"max_demos must be at least {num_needed} for min_per_class={minimum}, because the demos for "
                f"{name!r} have {len(known)} different values of {output.name!r}; got {max_demos}: increase "
                "max_demos, or reduce or omit min_per_class"
            )
    if not classes:
        fields = " or ".join(repr(output.name) for output in outputs.values())
        raise UserError(
            f"min_per_class={minimum} needs demos with a value in the field {fields}; got none: pass examples with a "
            "value in this field, or omit min_per_class"
        )
    return classes


def warn_if_too_few(
    classes: Mapping[str, DemoClasses], demos: Mapping[str, Sequence[Any]], *, max_bootstrapped: int
) -> None:
    """Warn if `max_bootstrapped` more demos are too few to bring every class to its minimum.

    `demos` maps each predictor to the demos that it has without bootstrapping.
    """
    num_missing = max(
        (of_predictor.num_missing(demos[name]) for name, of_predictor in classes.items()), default=0
    )
    if num_missing > max_bootstrapped:
        logger.warning(
            "at most %d demos are bootstrapped, but min_per_class needs %d, so some classes will lack demos: increase "
            "max_bootstrapped to at least %d",
            max_bootstrapped,
            num_missing,
            num_missing,
        )


def _outputs(program: dspy.Module, demos: Sequence[Any]) -> Mapping[str, LabelOutput]:
    """Return the output whose values are classes, for each predictor that has such an output."""
    outputs = {}
    for name, predictor in program.named_predictors():
        with_few_values = label_outputs(name, predictor)
        if len(with_few_values) == 1:
            outputs[name] = with_few_values[0]
    if outputs:
        return outputs
    for name, predictor in program.named_predictors():
        fields = predictor.signature.output_fields
        if len(fields) == 1:
            ((field, info),) = fields.items()
            values = [demo.get(field) for demo in (*demos, *predictor.demos)]
            labels = {name_of_label(value): value for value in values if value is not None}
            outputs[name] = LabelOutput(name, field, labels, info.annotation)
    return outputs

"""A program with fixed answers, examples labeled "yes" or "no", and evaluations of programs."""

import dspy
from dspy.utils.exceptions import AdapterParseError
from label_engines import exact

from plr_dspy import evaluate_programs

LABELS = ["no", "yes"]
YES_OR_NO = "number -> label: Literal['no', 'yes']"


class Answering(dspy.Module):
    """A program that answers "yes" to the numbers in `yes`, and "no" to all others.

    For the numbers in `unread`, replies cannot be parsed. For the numbers in `failing`, calls fail.
    """

    def __init__(self, yes, *, unread=(), failing=()):
        super().__init__()
        self.step = dspy.Predict(YES_OR_NO)
        self.yes = set(yes)
        self.unread = set(unread)
        self.failing = set(failing)

    def forward(self, number):
        if number in self.failing:
            raise ConnectionError("no route")
        if number in self.unread:
            raise AdapterParseError("Fake", self.step.signature, "gibberish")
        return dspy.Prediction(label="yes" if number in self.yes else "no")


def examples(count, yes):
    labels = ["yes" if n in yes else "no" for n in range(count)]
    rows = [dspy.Example(number=n, label=label) for n, label in enumerate(labels)]
    return [row.with_inputs("number") for row in rows]


def evaluated(programs, metric, devset, **options):
    return evaluate_programs(programs, metric, devset, display_progress=False, **options)


def evaluated_alone(program, metric, devset):
    return evaluated({"it": program}, metric, devset).programs["it"]


def minus(example, prediction):
    return exact(example, prediction) - 1.0

"""Outputs that may be None besides a label: it is an answer, too."""

from typing import Optional

import dspy
from fakes import Program, using
from label_engines import KIND, LABELS, Classifier, classifier, exact

from plr_dspy import evaluate_programs

QUIET = {"num_threads": 1, "display_progress": False}
OPTIONAL = Optional[KIND]  # noqa: UP045
ONE, OTHER = LABELS


def examples(*labels):
    return [dspy.Example(text=f"text {i}", label=label).with_inputs("text") for i, label in enumerate(labels)]


def with_demos(*labels):
    program = classifier(OPTIONAL)
    program.demos = [dspy.Example(text=f"demo {i}", label=label) for i, label in enumerate(labels)]
    return program


def test_it_has_a_recall_of_its_own():
    answers = {"text 0": ONE, "text 1": None, "text 2": OTHER, "text 3": None, "text 4": ONE}
    program = Program(lambda self, text: dspy.Prediction(label=answers[text]), predict=with_demos())
    devset = examples(ONE, None, OTHER, OTHER, None)
    with using(Classifier(lambda text: {})):
        found = evaluate_programs({"a": program}, exact, devset, **QUIET)
    assert found.programs["a"].recalls == {ONE: 1.0, OTHER: 0.5, "None": 0.5}

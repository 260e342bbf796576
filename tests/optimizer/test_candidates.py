"""Results that earlier optimizers attached to a student."""

import time

import dspy
import pytest
from fakes import Program, exact_match, questions, student

from plr_dspy import PLReorder

EXAMPLES = questions(60)
pytestmark = pytest.mark.usefixtures("engine")


def two_steps(**attributes):
    def in_turn(self, question):
        assert type(getattr(self, "candidate_programs", [])) in (list, str)
        return self.second(question=question, hint=self.first(question=question).hint)

    second = student([{**e, "hint": "none"} for e in EXAMPLES[:4]], "question, hint -> answer")
    return Program(in_turn, first=dspy.Predict("question -> hint"), second=second, **attributes)


def test_attached_results_are_not_part_of_a_students_identity(tmp_path):
    """Attached results differ between runs, because they contain durations."""
    optimizer = PLReorder(exact_match, max_metric_calls=100, log_dir=tmp_path)
    for _ in range(2):
        before = PLReorder(exact_match, max_metric_calls=100)
        first = before.compile(two_steps(), trainset=EXAMPLES)
        entry = {"score": 0.5, "program": two_steps(), "seconds": time.perf_counter()}
        first.candidate_programs = [entry]
        second = optimizer.compile(first, trainset=EXAMPLES)
    assert optimizer.report.program_calls["resumed"] == optimizer.report.program_calls["total"]
    assert not hasattr(second, "candidate_programs")
    assert len(first.candidate_programs) == 1, "the student must keep its attached results"


@pytest.mark.parametrize("kept", [[], ["mine"], "text"])
def test_a_users_own_attribute_is_kept(kept):
    """The user's attribute has the name of an attribute that DSPy's optimizers attach."""
    optimizer = PLReorder(exact_match, max_metric_calls=100)
    program = optimizer.compile(two_steps(candidate_programs=kept), trainset=EXAMPLES)
    assert program.candidate_programs == kept
    assert not optimizer.report.errors
    assert optimizer.compile(program, trainset=EXAMPLES).candidate_programs == kept

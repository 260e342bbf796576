"""What a compiled program carries of the orders compared, in the ways of DSPy's own optimizers."""

import copy
import json

import dspy
import pytest
from fakes import Program, exact_match, questions, student

from plr_dspy import PLReorder
from plr_dspy.baselines import TopKOrder

EXAMPLES = questions(60)
pytestmark = pytest.mark.usefixtures("engine")


def two_steps(**attributes):
    def in_turn(self, question):
        assert type(getattr(self, "candidate_programs", [])) in (list, str)
        return self.second(question=question, hint=self.first(question=question).hint)

    second = student([{**e, "hint": "none"} for e in EXAMPLES[:4]], "question, hint -> answer")
    return Program(in_turn, first=dspy.Predict("question -> hint"), second=second, **attributes)


def shown(program):
    return [[demo["question"] for demo in predictor.demos] for predictor in program.predictors()]


@pytest.mark.parametrize(("kind", "options"), [(PLReorder, {}), (PLReorder, {"min_probability": 1.0}), (TopKOrder, {})])
def test_they_are_the_orders_of_the_final_comparison_the_chosen_one_first(kind, options):
    """Also where others are expected to do better, and nothing is sure enough."""
    optimizer = kind(exact_match, max_metric_calls=200, **options)
    program = optimizer.compile(student(), trainset=EXAMPLES)
    found = program.candidate_programs
    assert len(found) == len(optimizer.report.candidates) > 1
    scores = {tuple(c.ordering["self"]): c.score for c in optimizer.report.candidates}
    assert {tuple(c["ordering"]["self"]): c["score"] for c in found} == scores
    assert {c["origin"] for c in found} >= {"original"}
    demos = [demo.question for demo in student().demos]
    for candidate in found:
        assert shown(candidate["program"]) == [[demos[i] for i in candidate["ordering"]["self"]]]
    first, *others = found
    assert shown(first["program"]) == shown(program)
    assert first["score"] == optimizer.report.comparison.chosen
    gains = {tuple(c.ordering["self"]): c.expected_gain for c in optimizer.report.candidates}
    ranked = [gains[tuple(c["ordering"]["self"])] for c in others]
    assert ranked == sorted(ranked, reverse=True)
    assert all(c["program"](question=EXAMPLES[0].question).answer for c in found)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda program: program.deepcopy()])
def test_they_are_no_part_of_the_program_and_a_copy_has_its_own(duplicate, tmp_path):
    before = two_steps()
    program = PLReorder(exact_match, max_metric_calls=100).compile(before, trainset=EXAMPLES)
    assert len(program.candidate_programs) > 1
    assert [name for name, _ in program.named_predictors()] == ["first", "second"]
    assert program.dump_state().keys() - {"metadata"} == before.dump_state().keys() - {"metadata"}
    program.save(tmp_path / "program.json")
    saved = json.loads((tmp_path / "program.json").read_text())
    assert saved.keys() == {"first", "second", "metadata"}
    other = duplicate(program)
    other.candidate_programs[0]["program"].second.demos.clear()
    other.second.demos.clear()
    assert shown(program) == shown(program.candidate_programs[0]["program"]) != shown(other)


def test_they_do_not_pile_up_and_are_no_part_of_a_students_identity(tmp_path):
    """A report holds seconds: with it a chain of two would never find its folder again."""
    optimizer = PLReorder(exact_match, max_metric_calls=100, log_dir=tmp_path)
    for _ in range(2):
        first = PLReorder(exact_match, max_metric_calls=100).compile(two_steps(), trainset=EXAMPLES)
        second = optimizer.compile(first, trainset=EXAMPLES)
    assert optimizer.report.program_calls["resumed"] == optimizer.report.program_calls["total"]
    for candidate in second.candidate_programs:
        assert not hasattr(candidate["program"], "candidate_programs")
        assert not hasattr(candidate["program"], "reorder_report")
    assert len(first.candidate_programs) > 1, "the student keeps what it has"


@pytest.mark.parametrize("kept", [[], ["mine"], "text"])
def test_attributes_of_the_users_own_stay(kept):
    """A program has an attribute of a name that compiled programs have, and reads it when it runs."""
    optimizer = PLReorder(exact_match, max_metric_calls=100)
    program = optimizer.compile(two_steps(candidate_programs=kept), trainset=EXAMPLES)
    assert program.candidate_programs == kept
    assert not optimizer.report.errors
    assert optimizer.compile(program, trainset=EXAMPLES).candidate_programs == kept

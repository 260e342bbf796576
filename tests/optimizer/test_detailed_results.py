"""The attribute `detailed_results` of returned programs, and results that earlier optimizers attached."""

import json
import time

import dspy
import pytest
from fakes import Program, engine_for, exact_match, questions, student, using

from plr_dspy import PLFewShot, PLReorder, choose_program, evaluate_programs
from plr_dspy.baselines import TopKOrder

EXAMPLES = questions(80)
RUNS = {
    "PLReorder": lambda: PLReorder(exact_match, max_metric_calls=100, seed=3),
    "PLFewShot": lambda: PLFewShot(exact_match, max_metric_calls=100, seed=3),
    "instructions": lambda: PLFewShot(
        exact_match, max_metric_calls=100, seed=3, instructions=["Name the answer."]
    ),
    "retrieved": lambda: PLFewShot(exact_match, max_metric_calls=100, seed=3, demos="retrieved"),
    "TopKOrder": lambda: TopKOrder(exact_match, max_metric_calls=200, seed=3),
}


@pytest.fixture(autouse=True, scope="module")
def engine():
    with using(engine_for(EXAMPLES)) as engine:
        yield engine


@pytest.fixture(params=RUNS, scope="module")
def run(request):
    """Return an optimizer and the program that it compiled."""
    optimizer = RUNS[request.param]()
    return optimizer, optimizer.compile(student(), trainset=EXAMPLES)


def fields_of(predictor):
    return [{name: str(value) for name, value in demo.items()} for demo in predictor.demos]


def test_the_results_list_the_finalists_and_the_returned_candidate(run):
    optimizer, program = run
    results = program.detailed_results
    report = optimizer.report
    assert results["val_aggregate_scores"] == [candidate.score for candidate in report.candidates]
    assert len(results["candidates"]) == len(report.candidates) > 1
    assert results["val_aggregate_scores"][results["best_idx"]] == report.comparison.chosen
    returned = results["candidates"][results["best_idx"]]
    assert returned["probability"] == report.comparison.probability
    if not returned["name"]:
        assert returned["demos"] == {"self": fields_of(program)}
        assert returned["instructions"] in ({}, {"self": program.signature.instructions})
    assert results["candidates"][0]["demos"] == {"self": fields_of(student())}
    assert results["total_metric_calls"] == report.program_calls["total"]
    assert results["seed"] == 3


def test_the_results_are_plain_data_that_is_copied_but_not_saved(run, tmp_path):
    _, program = run
    results = program.detailed_results
    assert json.loads(json.dumps(results)) == results
    assert [name for name, _ in program.named_predictors()] == ["self"]
    assert program.deepcopy().detailed_results == results
    assert program.reset_copy().detailed_results == results
    program.save(tmp_path / "program.json")
    assert "val_aggregate_scores" not in (tmp_path / "program.json").read_text()
    assert "detailed_results" not in program.dump_state()


def test_a_second_compile_replaces_the_results():
    first = RUNS["PLReorder"]().compile(student(), trainset=EXAMPLES)
    before = dict(first.detailed_results)
    second = PLReorder(exact_match, max_metric_calls=100, seed=5).compile(first, trainset=EXAMPLES)
    assert second.detailed_results["seed"] == 5
    assert first.detailed_results == before


def test_results_of_gepa_are_replaced_only_in_the_returned_program():
    class GEPAResult:
        def __init__(self):
            self.candidates = [student(2), student(3)]
            self.val_aggregate_scores = [0.1, 0.2]

    program = student()
    program.detailed_results = GEPAResult()
    compiled = RUNS["PLReorder"]().compile(program, trainset=EXAMPLES)
    assert set(compiled.detailed_results) >= {"candidates", "best_idx"}
    assert isinstance(program.detailed_results, GEPAResult)


def test_a_users_own_attribute_is_kept():
    def forward(self, question):
        assert self.detailed_results == "mine"
        return self.predict(question=question)

    program = Program(forward, predict=student(), detailed_results="mine")
    compiled = RUNS["PLReorder"]().compile(program, trainset=EXAMPLES)
    assert compiled.detailed_results == "mine"


def test_a_race_names_its_programs():
    choice = choose_program({"few": student(1), "many": student(6)}, exact_match, EXAMPLES)
    results = choice.program.detailed_results
    assert results["candidates"][results["best_idx"]]["name"] == choice.name
    assert {candidate["name"] for candidate in results["candidates"]} == {"few", "many"}


def test_without_a_comparison_there_are_no_candidates():
    optimizer = PLFewShot(exact_match, demos="retrieved", max_metric_calls=0)
    program = optimizer.compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
    assert program.detailed_results["candidates"] == []
    assert program.detailed_results["best_idx"] is None


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
def test_a_users_own_candidate_programs_are_kept(kept):
    """The user's attribute has the name of an attribute that DSPy's optimizers attach."""
    optimizer = PLReorder(exact_match, max_metric_calls=100)
    program = optimizer.compile(two_steps(candidate_programs=kept), trainset=EXAMPLES)
    assert program.candidate_programs == kept
    assert not optimizer.report.errors
    assert optimizer.compile(program, trainset=EXAMPLES).candidate_programs == kept


def with_results(program):
    """Return the program with results of optimizers as attributes. No two calls attach the same results."""
    unique = time.perf_counter()
    program.reorder_report = {"seconds": unique}
    program.calibration_report = {"num_examples": unique}
    candidate = dspy.Predict(f"question -> answer{int(unique * 1e6)}")
    for name in ("candidate_programs", "mb_candidate_programs"):
        setattr(program, name, [{"score": 0.5, "program": candidate}])
    if not hasattr(program, "score"):  # The user's own attribute stays.
        program.trial_logs = {1: {"full_eval_program": candidate, "full_eval_score": unique}}
        program.score = unique
        program.mb_candidate_programs = []
    return program


def explaining(place=None):
    """Return a program of one part. If `place` is given, attach results to the program or to the part."""
    part = dspy.ChainOfThought("question -> answer")
    program = Program(lambda self, question: self.part(question=question), part=part)
    if place is not None:
        with_results({"program": program, "part": part}[place])
    return program


class TestIdentity:
    """Programs that differ only in the results that optimizers attached."""

    @pytest.mark.parametrize("place", ["program", "part"])
    def test_they_count_as_the_same_program(self, engine, place):
        num_calls = engine.num_calls
        programs = {"plain": explaining(), "first": explaining(place), "second": explaining(place)}
        evaluate_programs(programs, exact_match, EXAMPLES[:10], display_progress=False)
        assert engine.num_calls == num_calls + 10

    @pytest.mark.parametrize("place", ["program", "part"])
    @pytest.mark.parametrize("role", ["student", "teacher", "judge"])
    def test_a_run_resumes_without_calls(self, engine, tmp_path, role, place):
        plain = explaining()
        for with_attached in (None, place, place):
            programs = {"student": plain, "teacher": plain, "judge": plain, role: explaining(with_attached)}
            judge = programs["judge"]

            def metric(example, prediction, trace=None, judge=judge):
                return exact_match(example, prediction) and judge is not None

            num_calls = engine.num_calls
            optimizer = PLFewShot(metric, max_metric_calls=60, candidates="bootstrapped", log_dir=tmp_path)
            estimated = optimizer.estimate(programs["student"], trainset=EXAMPLES)
            optimizer.compile(programs["student"], trainset=EXAMPLES, teacher=programs["teacher"])
            assert engine.num_calls == num_calls or with_attached is None
            assert estimated.prompt_tokens == optimizer.estimate(plain, trainset=EXAMPLES).prompt_tokens

    def test_a_users_attributes_are_neither_removed_nor_ignored(self, engine):
        """DSPy's optimizers may also set an attribute `score`."""

        def scored(**changed):
            def forward(self, question):
                return self.score(question=question)

            program = with_results(Program(forward, score=student()))
            vars(program).update(changed)
            return program

        program = PLReorder(exact_match, max_metric_calls=100).compile(scored(), trainset=EXAMPLES)
        assert len(program.score.demos) == len(student().demos)
        num_calls = engine.num_calls
        programs = {"plain": scored(), "changed": scored(trial_logs={1: "mine"}), "same": scored()}
        evaluate_programs(programs, exact_match, EXAMPLES[:10], display_progress=False)
        assert engine.num_calls == num_calls + 20

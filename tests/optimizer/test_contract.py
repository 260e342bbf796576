"""Optimizers before or after DSPy's optimizers, with various kinds of programs."""

import json
from functools import partial

import dspy
import pytest
from fakes import Program, engine_for, exact_match, questions, two_predictors, using

import chains
from plr_dspy import PLFewShot, PLReorder, load_program

EXAMPLES = questions(60)


def with_frozen_part():
    frozen = dspy.ChainOfThought("question -> answer")
    frozen.predict.demos = [dspy.Example(reasoning="r", **e) for e in EXAMPLES[50:53]]
    frozen._compiled = True

    def in_turn(self, **inputs):
        self.frozen(**inputs)
        return self.answer(**inputs)

    return Program(in_turn, frozen=frozen, answer=dspy.Predict("question -> answer"))


def look_up(question: str) -> str:
    """Look up a question."""
    return "nothing found"


PROGRAMS = {
    "predict": lambda: dspy.Predict("question -> answer"),
    "chain_of_thought": lambda: dspy.ChainOfThought("question -> answer"),
    "two_predictors": two_predictors,
    "react": lambda: dspy.ReAct("question -> answer", tools=[look_up], max_iters=2),
    "frozen_part": with_frozen_part,
}


def state(program):
    states = []
    for name, predictor in program.named_predictors():
        demos = list(map(id, predictor.demos))
        states.append((name, demos, predictor.signature, id(predictor.lm)))
    return states


def sorted_fields(demo):
    return repr(sorted(dict(demo).items()))


def multiset(program):
    demos = {}
    for name, predictor in program.named_predictors():
        demos[name] = sorted(map(sorted_fields, predictor.demos))
    return demos


def prompts(program):
    adapter = dspy.ChatAdapter()
    return [
        adapter.format_demos(predictor.signature, predictor.demos) for predictor in program.predictors()
    ]


def check(shape, make, student, folder):
    """Check that a compile leaves the student unchanged, and returns a program that can be saved."""
    before = state(student)
    optimizer = make(num_threads=8, max_metric_calls=70, seed=2, display_progress=False)
    compiled = optimizer.compile(student, trainset=EXAMPLES)
    report = optimizer.report
    assert state(student) == before, "the student was changed"
    assert [name for name, _ in compiled.named_predictors()] == [name for name, *_ in before]
    assert [id(predictor.lm) for predictor in compiled.predictors()] == [number for *_, number in before]
    assert report.program_calls["total"] <= 70
    compiled.set_lm(None)  # A fake LM cannot be saved.
    compiled.save(folder / "program.json")
    loaded = PROGRAMS[shape]()
    loaded.load(folder / "program.json")
    assert prompts(loaded) == prompts(compiled)
    return compiled, report


@pytest.mark.parametrize("shape", sorted(PROGRAMS))
def test_demos_chosen_by_other_optimizers_are_ordered(shape, engine, tmp_path):
    options = {"metric": exact_match, "max_bootstrapped_demos": 3, "max_labeled_demos": 5}
    choosing = dspy.BootstrapFewShot(**options)
    choosing = dspy.LabeledFewShot(k=5) if shape in ("predict", "frozen_part") else choosing
    student = choosing.compile(PROGRAMS[shape](), trainset=EXAMPLES)
    student.set_lm(dspy.settings.lm)
    compiled, _ = check(shape, partial(PLReorder, exact_match), student, tmp_path)
    for name, predictor in student.named_predictors():
        assert not predictor.demos or multiset(compiled)[name] == multiset(student)[name]


@pytest.mark.parametrize("shape", sorted(PROGRAMS))
def test_demos_are_chosen_for_all_predictors_that_are_not_frozen(shape, engine, tmp_path):
    make = partial(PLFewShot, exact_match, max_demos=3, max_bootstrapped=3)
    compiled, report = check(shape, make, PROGRAMS[shape](), tmp_path)
    names = {name for name, _ in compiled.named_predictors()}
    free = {name for name in names if not name.startswith("frozen")}
    assert {slot.predictor for slot in report.slots} == free


@pytest.mark.parametrize("name", chains.CHAINS)
def test_each_example_chain_runs(name, engine, monkeypatch):
    monkeypatch.setattr(chains, "CALLS", 60)
    student = dspy.Predict("question -> answer")
    program = chains.CHAINS[name](student, EXAMPLES, exact_match, dspy.settings.lm)
    assert not student.demos
    assert program(question=EXAMPLES[0].question).answer
    members = [program, *getattr(program, "programs", [])]
    reports = [m.reorder_report for m in members if hasattr(m, "reorder_report")]
    assert reports or name == "better_together", "only BetterTogether may return a step without a report"
    assert all(report["program_calls"]["total"] <= chains.CALLS for report in reports)


def test_inside_better_together(engine):
    """`BetterTogether` passes arguments on to `compile`, and reordering keeps the set of demos."""
    strategy = "few -> reorder -> reorder"
    arguments = {"reorder": {"seed": 4, "valset": EXAMPLES[:10]}}
    student = dspy.Predict("question -> answer")
    reorder = PLReorder(exact_match, max_metric_calls=150)
    student.set_lm(dspy.settings.lm)
    optimizer = dspy.BetterTogether(metric=exact_match, few=dspy.LabeledFewShot(k=5), reorder=reorder)
    compiled = optimizer.compile(
        student,
        trainset=EXAMPLES[:40],
        valset=EXAMPLES[40:],
        strategy=strategy,
        optimizer_compile_args=arguments,
    )
    assert not compiled.flag_compilation_error_occurred
    programs = {candidate["strategy"]: candidate["program"] for candidate in compiled.candidate_programs}
    report = programs[strategy].reorder_report
    assert report["settings"]["seed"] == 4
    assert report["settings"]["num_selection"] <= 10
    before = sorted(demo.question for demo in programs["few"].demos)
    after = sorted(demo.question for demo in programs[strategy].demos)
    assert before == after


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", [dspy.Predict, dspy.ChainOfThought])
def test_members_of_an_ensemble_are_saved_one_by_one(module, tmp_path):
    """DSPy's file for an ensemble omits compiled members, unless they are `dspy.Predict` modules."""
    make = partial(module, "question -> answer")
    with using(engine_for(EXAMPLES)):
        members = [dspy.LabeledFewShot(k=4).compile(make(), trainset=EXAMPLES) for _ in range(2)]
        options = {"max_metric_calls": 40, "num_threads": 1, "display_progress": False}
        optimizer = PLReorder(exact_match, **options)
        members = [optimizer.compile(member, trainset=EXAMPLES) for member in members]
        ensemble = dspy.Ensemble(reduce_fn=dspy.majority).compile(members)
        ensemble.save(tmp_path / "ensemble.json")
        for i, member in enumerate(members):
            member.save(tmp_path / f"member-{i}.json")
        loaded = [load_program(make(), tmp_path / f"member-{i}.json") for i in range(2)]
        again = dspy.Ensemble(reduce_fn=dspy.majority).compile(loaded)
        answers = [program(question="question 39").toDict() for program in (ensemble, again)]
    assert answers[0] == answers[1]
    assert prompts(loaded[0]) == prompts(members[0])
    held = json.loads((tmp_path / "ensemble.json").read_text()).keys() - {"metadata"}
    assert len(held) == (2 if module is dspy.Predict else 0)

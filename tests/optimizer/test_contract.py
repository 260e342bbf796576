"""PLReorder after DSPy's demo-choosing optimizers, and PLFewShot in their place, on programs of every shape."""

import warnings

import dspy
import pytest
from fakes import exact_match, fake_lm, questions

from plr_dspy import PLFewShot, PLReorder

EXAMPLES = questions(60)


class TwoPredictors(dspy.Module):
    def __init__(self):
        super().__init__()
        self.hint = dspy.Predict("question -> hint")
        self.answer = dspy.ChainOfThought("question, hint -> answer")

    def forward(self, question):
        return self.answer(question=question, hint=self.hint(question=question).hint)


class WithFrozenPart(dspy.Module):
    def __init__(self):
        super().__init__()
        self.frozen = dspy.ChainOfThought("question -> answer")
        self.frozen.predict.demos = [dspy.Example(reasoning="r", **e) for e in EXAMPLES[50:53]]
        self.frozen._compiled = True
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question):
        self.frozen(question=question)
        return self.answer(question=question)


def look_up(question: str) -> str:
    """Look up a question."""
    return "nothing found"


PROGRAMS = {
    "predict": lambda: dspy.Predict("question -> answer"),
    "chain_of_thought": lambda: dspy.ChainOfThought("question -> answer"),
    "two_predictors": TwoPredictors,
    "react": lambda: dspy.ReAct("question -> answer", tools=[look_up], max_iters=2),
    "frozen_part": WithFrozenPart,
}


def labeled_few_shot(program):
    return dspy.LabeledFewShot(k=5).compile(program, trainset=EXAMPLES)


def bootstrap(program):
    optimizer = dspy.BootstrapFewShot(metric=exact_match, max_bootstrapped_demos=3, max_labeled_demos=5)
    return optimizer.compile(program, trainset=EXAMPLES)


def random_search(program):
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=exact_match,
        max_bootstrapped_demos=3,
        max_labeled_demos=5,
        num_candidate_programs=2,
        num_threads=4,
    )
    return optimizer.compile(program, trainset=EXAMPLES[:20], valset=EXAMPLES[20:30])


def mipro(program):
    optimizer = dspy.MIPROv2(
        metric=exact_match,
        auto=None,
        num_candidates=2,
        max_bootstrapped_demos=3,
        max_labeled_demos=3,
        num_threads=4,
        verbose=False,
    )
    return optimizer.compile(
        program, trainset=EXAMPLES[:20], valset=EXAMPLES[20:30], num_trials=2, minibatch=False
    )


def simba(program):
    optimizer = dspy.SIMBA(
        metric=exact_match, bsize=8, num_candidates=2, max_steps=2, max_demos=4, num_threads=4
    )
    return optimizer.compile(program, trainset=EXAMPLES[:24], seed=1)


OPTIMIZERS = [labeled_few_shot, bootstrap, random_search, mipro, simba]


def state(program):
    return [
        (name, list(map(id, predictor.demos)), predictor.signature, id(predictor.lm))
        for name, predictor in program.named_predictors()
    ]


def multiset(program):
    return {
        name: sorted(repr(sorted(dict(demo).items())) for demo in predictor.demos)
        for name, predictor in program.named_predictors()
    }


def prompts(program):
    adapter = dspy.ChatAdapter()
    return [adapter.format_demos(predictor.signature, predictor.demos) for predictor in program.predictors()]


@pytest.mark.parametrize("choose_demos", OPTIMIZERS, ids=lambda optimizer: optimizer.__name__)
@pytest.mark.parametrize("shape", sorted(PROGRAMS))
def test_contract(shape, choose_demos, tmp_path):
    lm, _ = fake_lm(EXAMPLES)
    with warnings.catch_warnings(), dspy.context(lm=lm):
        warnings.simplefilter("ignore")
        student = choose_demos(PROGRAMS[shape]())
        student.set_lm(lm)
        before = state(student)
        runs = []
        for num_threads in (1, 8):
            reorder = PLReorder(
                exact_match, max_metric_calls=150, num_threads=num_threads, seed=1, display_progress=False
            )
            runs.append((reorder.compile(student, trainset=EXAMPLES), reorder.report))
        (compiled, report), (again, report_again) = runs

        assert state(student) == before, "the student was changed"
        filled = [name for name, predictor in student.named_predictors() if predictor.demos]
        for name in filled:
            assert multiset(compiled)[name] == multiset(student)[name]
        assert [name for name, _ in compiled.named_predictors()] == [name for name, *_ in before]
        assert [predictor.lm for predictor in compiled.predictors()] == [lm] * len(before)
        assert prompts(again) == prompts(compiled)
        assert report_again.candidates == report.candidates
        assert report.program_calls["total"] <= 150
        assert compiled._compiled

        compiled.set_lm(None)  # the fake has no saved form
        compiled.save(tmp_path / "program.json")
        loaded = PROGRAMS[shape]()
        loaded.load(tmp_path / "program.json")
        assert prompts(loaded) == prompts(compiled)


@pytest.mark.parametrize("shape", sorted(PROGRAMS))
def test_choosing_demos(shape, tmp_path):
    lm, _ = fake_lm(EXAMPLES)
    with warnings.catch_warnings(), dspy.context(lm=lm):
        warnings.simplefilter("ignore")
        student = PROGRAMS[shape]()
        before = state(student)
        runs = []
        for num_threads in (1, 8):
            chooser = PLFewShot(
                exact_match,
                max_demos=3,
                max_bootstrapped=3,
                max_metric_calls=150,
                num_threads=num_threads,
                seed=1,
                display_progress=False,
            )
            runs.append((chooser.compile(student, trainset=EXAMPLES), chooser.report))
        (compiled, report), (again, report_again) = runs

        assert state(student) == before, "the student was changed"
        assert prompts(again) == prompts(compiled)
        assert report_again.candidates == report.candidates
        assert report.program_calls["total"] <= 150
        assert {slot.predictor for slot in report.slots} == {
            name for name, predictor in student.named_predictors() if not name.startswith("frozen")
        }
        compiled.save(tmp_path / "program.json")
        loaded = PROGRAMS[shape]()
        loaded.load(tmp_path / "program.json")
        assert prompts(loaded) == prompts(compiled)

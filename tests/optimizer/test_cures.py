"""What an error tells a user to do, done: it works, or at least the next error is another one."""

import asyncio
import enum
import re
from typing import Literal

import dspy
import numpy as np
import pytest
from fakes import exact_match, fake_lm, questions, student

from plr_dspy import PLReorder, order_sensitivity
from plr_dspy.baselines import PDO, DEmO, GlobalE, LocalE, TopKOrder
from plr_dspy.programs.calls import MetricWork, as_score

EXAMPLES = questions(60)
QUIET = {"num_threads": 2, "display_progress": False}


@pytest.fixture(autouse=True)
def engine():
    lm, engine = fake_lm(EXAMPLES)
    with dspy.context(lm=lm):
        yield engine


def compiled(optimizer=None, program=None, **data):
    optimizer = optimizer or PLReorder(exact_match, max_metric_calls=120, **QUIET)
    return optimizer.compile(program or student(5), **{"trainset": EXAMPLES, **data})


def score(metric):
    return MetricWork(metric, EXAMPLES)(student(5), 20, None).score


async def metric(example, prediction):
    await asyncio.sleep(0)
    return True


class Judge(dspy.Module):
    async def forward(self, example, prediction):
        return await metric(example, prediction)


class OnlyAsync(dspy.Module):
    async def aforward(self, example, prediction):
        return await metric(example, prediction)


class TestAsyncMetrics:
    @pytest.mark.parametrize(
        "made", [metric, Judge(), lambda example, prediction: metric(example, prediction)]
    )
    def test_the_lambda(self, made):
        with pytest.raises(TypeError, match="async") as error:
            score(made)
        advice = re.search(r"pass metric=(lambda .*)", str(error.value)).group(1)
        assert score(eval(advice, {"asyncio": asyncio, "metric": made})) == 1.0

    def test_syncify_of_a_judge(self):
        with pytest.raises(TypeError, match=r"pass dspy.syncify\(metric\)"):
            PLReorder(OnlyAsync())
        assert score(dspy.syncify(OnlyAsync())) == 1.0

    def test_a_compile(self):
        async def judged(example, prediction):
            return exact_match(example, prediction)

        optimizer = PLReorder(lambda e, p: asyncio.run(judged(e, p)), max_metric_calls=120, **QUIET)
        assert compiled(optimizer).demos == compiled().demos

    def test_a_judge_with_a_call_of_its_own(self):
        class Called(dspy.Module):
            def __call__(self, example, prediction):
                return 0.5

        assert score(Called()) == 0.5


class TestScores:
    @pytest.mark.parametrize("value", [np.array([0.5]), np.array([[0.5]]), np.array(0.5), np.float32(0.5)])
    def test_one_number_is_a_number(self, value):
        assert as_score(value) == as_score(dspy.Prediction(score=value)) == 0.5

    @pytest.mark.parametrize("value", [np.array([0.5, 1.0]), np.array([]), np.array(["a"]), [1.0], 1j])
    def test_several_are_none(self, value):
        with pytest.raises(TypeError, match=f"metric must return a number.*got {type(value).__name__}"):
            as_score(value)

    def test_a_prediction_without_a_score_is_shown_in_a_line(self):
        with pytest.raises(TypeError, match=r"got Prediction: Prediction\( answer='a' \)"):
            as_score(dspy.Prediction(answer="a"))


class TestSets:
    def test_the_trainset_as_valset(self):
        with pytest.raises(
            ValueError, match=r"all 55 that no demo shows are in both: leave valset out.*or split"
        ):
            compiled(valset=EXAMPLES)
        compiled()
        compiled(trainset=EXAMPLES[:40], valset=EXAMPLES[40:])

    def test_one_example_in_both(self):
        with pytest.raises(ValueError, match=r"trainset must hold at least two examples.*pass more examples"):
            compiled(trainset=EXAMPLES[:6], valset=EXAMPLES[5:6])
        compiled(trainset=EXAMPLES, valset=EXAMPLES[5:6])


def least(error):
    return int(re.search(r"max_metric_calls must be at least (\d+)", str(error.value)).group(1))


class TestBudgets:
    @pytest.mark.parametrize("budget", [1, 5, 20])
    def test_the_number_named_is_the_least(self, budget):
        with pytest.raises(ValueError, match=r"raise it$") as error:
            compiled(PLReorder(exact_match, max_metric_calls=budget, **QUIET))
        enough = least(error)
        optimizer = PLReorder(exact_match, max_metric_calls=enough, **QUIET)
        compiled(optimizer)
        assert 0 < optimizer.report.program_calls["total"] <= enough
        with pytest.raises(ValueError, match=f"at least {enough} "):
            compiled(PLReorder(exact_match, max_metric_calls=enough - 1, **QUIET))

    @pytest.mark.parametrize(
        "options",
        [{"max_metric_calls": 60, "num_samples": 50}, {"max_metric_calls": 100, "num_samples": 10**12}],
    )
    def test_samples(self, options):
        with pytest.raises(ValueError, match=r"for num_samples=\d+; .*or lower num_samples to \d+$") as error:
            compiled(PLReorder(exact_match, **options, **QUIET))
        fewer = int(str(error.value).rpartition(" ")[2])
        for cure in ({"num_samples": fewer}, {"max_metric_calls": least(error)}):
            PLReorder(exact_match, **{**options, **cure}, **QUIET).estimate(student(5), trainset=EXAMPLES)
        with pytest.raises(ValueError, match="lower num_samples"):
            compiled(PLReorder(exact_match, **{**options, "num_samples": fewer + 1}, **QUIET))

    def test_samples_are_not_named_where_fewer_would_not_do(self):
        with pytest.raises(ValueError, match=r"got 5: raise it$"):
            compiled(PLReorder(exact_match, max_metric_calls=5, num_samples=50, **QUIET))

    @pytest.mark.parametrize(
        ("budget", "cures"),
        [(20, "raise it$"), (30, "pass fewer examples, or use auto='light'$"), (100, "or use auto='light'$")],
    )
    def test_the_papers_settings(self, budget, cures):
        options = {"max_metric_calls": budget, **QUIET}
        with pytest.raises(ValueError, match=cures) as error:
            compiled(PLReorder(exact_match, auto="paper", **options))
        program, few = student(5), {"trainset": EXAMPLES[:7]}
        PLReorder(exact_match, auto="paper", max_metric_calls=least(error)).estimate(
            program, trainset=EXAMPLES
        )
        if "fewer examples" in str(error.value):
            PLReorder(exact_match, auto="paper", **options).estimate(program, **few)
        if "light" in str(error.value):
            PLReorder(exact_match, **options).estimate(program, trainset=EXAMPLES)

    def test_random_orders(self):
        with pytest.raises(ValueError, match="or pass fewer examples") as error:
            compiled(TopKOrder(exact_match, max_metric_calls=6, **QUIET))
        compiled(TopKOrder(exact_match, max_metric_calls=least(error), **QUIET))
        compiled(TopKOrder(exact_match, max_metric_calls=6, **QUIET), trainset=EXAMPLES[:7])
        with pytest.raises(ValueError, match=r"raise it \(PLReorder"):
            compiled(TopKOrder(exact_match, max_metric_calls=5, **QUIET))


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


def labelled(output):
    program = dspy.Predict(dspy.Signature({"question": (str, dspy.InputField()), **output}))
    program.demos = [
        dspy.Example(question=f"demo {i}", answer=("good", "bad")[i % 2], other=True) for i in range(4)
    ]
    return program


@pytest.mark.parametrize("kind", [LocalE, GlobalE, PDO, DEmO])
class TestLabelMethods:
    @pytest.mark.parametrize("budget", [1, 5, 12])
    def test_a_budget(self, kind, budget):
        program = labelled({"answer": (Literal["good", "bad"], dspy.OutputField())})
        with pytest.raises(ValueError, match=r"for 20 orders; .*raise it") as error:
            kind(exact_match, num_candidates=20, max_metric_calls=budget).estimate(program, trainset=EXAMPLES)
        cure = re.search(r"or lower num_candidates to (\d+)$", str(error.value))
        assert cure or budget < 12
        options = [{"max_metric_calls": least(error), "num_candidates": 20}]
        options += [{"max_metric_calls": budget, "num_candidates": int(cure.group(1))}] if cure else []
        for some in options:
            assert kind(exact_match, **some).estimate(program, trainset=EXAMPLES).program_calls <= max(
                some["max_metric_calls"], 0
            )

    def test_several_finite_outputs(self, kind):
        outputs = {"answer": (Mood, dspy.OutputField()), "other": (bool, dspy.OutputField())}
        with pytest.raises(ValueError, match=r"2 outputs are.*Give exactly one output such a type"):
            kind(exact_match).estimate(labelled(outputs), trainset=EXAMPLES)
        outputs["other"] = (str, dspy.OutputField())
        assert kind(exact_match).estimate(labelled(outputs), trainset=EXAMPLES)


class TestPrograms:
    def test_an_async_forward(self, engine):
        class Wrong(dspy.Module):
            def __init__(self):
                super().__init__()
                self.answer = student(5)

            async def forward(self, question):
                return await self.answer.acall(question=question)

        with pytest.raises(
            TypeError, match=r"rename its forward to aforward, wrap it with dspy.syncify\(program\)"
        ):
            compiled(program=Wrong())

        class Right(Wrong):
            forward = None
            aforward = Wrong.forward

        class AsyncEngine:
            async def complete(self, request):
                return engine.complete(request)

        lm = dspy.LM("fake/order-sensitive", engine=engine, async_engine=AsyncEngine(), cache=False)
        with dspy.context(lm=lm):
            assert compiled(program=dspy.syncify(Right())).answer.demos == compiled().demos

    def test_frozen_parts(self):
        class Outer(dspy.Module):
            def __init__(self, part):
                super().__init__()
                self.part = part

            def forward(self, question):
                return self.part(question=question)

        program = Outer(Outer(student(5)))
        program.part._compiled = True
        with pytest.raises(ValueError, match="compile the sub-module itself, or set its _compiled to False"):
            compiled(program=program)
        compiled(program=program.part)
        program.part._compiled = False
        compiled(program=program)

    def test_an_ensemble(self):
        members = [student(5), student(EXAMPLES[:4])]
        with pytest.raises(TypeError, match="compile its members with PLReorder first, then ensemble them"):
            compiled(program=dspy.Ensemble(reduce_fn=dspy.majority).compile(members))
        ensemble = dspy.Ensemble(reduce_fn=dspy.majority).compile([compiled(program=m) for m in members])
        assert ensemble(question="question 50").answer

    def test_no_demos(self):
        with pytest.raises(ValueError, match="or pass num_demos to PLReorder"):
            compiled(PLReorder(exact_match, num_demos=None), student([]))
        compiled(PLReorder(exact_match, num_demos=4, max_metric_calls=120, **QUIET), student([]))
        with pytest.raises(ValueError, match=r"such as dspy.LabeledFewShot or dspy.BootstrapFewShot$"):
            order_sensitivity(student([]), exact_match, EXAMPLES)

    @pytest.mark.parametrize("lm", ["openai/gpt-4o-mini", dspy.LM])
    def test_no_lm(self, lm):
        with (
            dspy.context(lm=lm),
            pytest.raises(TypeError, match=r"dspy.configure\(lm=dspy.LM\((.*)\)\)$") as error,
        ):
            compiled()
        assert ("..." in str(error.value)) == (lm is dspy.LM)

"""The original order is not given up for nothing, and the caller's settings do no harm."""

import itertools
import threading

import dspy
import pytest
import torch
from fakes import digest, fake_lm, questions

from plr_dspy import PLReorder

EXAMPLES = questions(150)


class Direct(dspy.Module):
    """A program that answers without an LM, as its own method `right` says."""

    def __init__(self, num_demos=8):
        super().__init__()
        self.predictor = dspy.Predict("question -> answer")
        self.predictor.demos = EXAMPLES[:num_demos]

    def forward(self, question):
        order = [demo["question"] for demo in self.predictor.demos]
        return dspy.Prediction(right=self.right(order, question))

    def right(self, order, question):
        return True


def right(example, prediction, trace=None):
    return prediction.right


def quiet(metric=right, **options):
    return PLReorder(metric, **{"num_threads": 2, "display_progress": False, **options})


def compiled(program, **options):
    lm, _ = fake_lm(EXAMPLES)
    optimizer = quiet(**options)
    with dspy.context(lm=lm):
        return optimizer.compile(program, trainset=EXAMPLES), optimizer.report


class TestTheOriginalOrderStays:
    def test_where_only_its_calls_failed(self):
        class Unlucky(Direct):
            def right(self, order, question):
                if order == sorted(order) and digest(question + "!") < 0.3:
                    raise TimeoutError("late")
                return order == sorted(order) or digest(question + order[0]) < 0.5

        program = Unlucky()
        assert [d["question"] for d in program.predictor.demos] == sorted(f"question {i}" for i in range(8))
        chosen, report = compiled(program, max_errors=10_000)
        assert chosen.predictor.demos == program.predictor.demos
        assert report.errors[0].type == "TimeoutError"


EXAMPLES_BY_QUESTION = {example.question: i for i, example in enumerate(EXAMPLES)}


class TestWhatWasPaidIsNotLost:
    class Backwards(Direct):
        def right(self, order, question):
            return digest(question) < 0.1 + 0.12 * EXAMPLES_BY_QUESTION[order[0]]

    def test_an_interrupt_in_the_first_round_leaves_the_best_order_that_was_scored(self):
        program, count = self.Backwards(), itertools.count()

        def metric(example, prediction, trace=None):
            if next(count) == 400:
                raise KeyboardInterrupt
            return prediction.right

        lm, _ = fake_lm(EXAMPLES)
        optimizer = quiet(metric, auto="heavy", num_threads=1)
        with dspy.context(lm=lm), pytest.raises(KeyboardInterrupt):
            optimizer.compile(program, trainset=EXAMPLES)
        assert not optimizer.report.history
        first = optimizer.best_program.predictor.demos[0]["question"]
        assert EXAMPLES_BY_QUESTION[first] >= 4

    def test_a_time_limit_in_the_first_round_still_compares(self):
        class Slow(self.Backwards):
            def right(self, order, question):
                threading.Event().wait(0.02)
                return super().right(order, question)

        _, report = compiled(Slow(), auto="heavy", max_seconds=2.0)
        assert report.stopped == "time limit"
        assert report.comparison is not None
        assert report.comparison.num_candidates > 1


class TestTheCallersTorch:
    @pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.device("meta")])
    def test_inference_mode_and_another_default_device(self, mode):
        class Varied(Direct):
            def right(self, order, question):
                return digest(question + order[0]) < 0.5

        expected = compiled(Varied(), max_metric_calls=150)[1].candidates
        with mode():
            _, report = compiled(Varied(), max_metric_calls=150)
        assert report.candidates == expected

"""The original order is not given up for nothing, and the caller's settings do no harm."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import dspy
import numpy as np
import pytest
import torch
from fakes import digest, fake_lm, questions
from threadpoolctl import threadpool_info

from plr_dspy import OrderingSpace, PLReorder, ThompsonSearch, Trial
from plr_dspy.runtime.threads import one_thread

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
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("auto", ["light", "paper"])
    def test_where_no_example_depends_on_the_order(self, seed, auto, caplog):
        class Blind(Direct):
            def right(self, order, question):
                return digest(question) < 0.6

        program = Blind()
        limits = {"num_iterations": 2, "num_samples": 4} if auto == "paper" else {}
        chosen, _ = compiled(program, seed=seed, auto=auto, **limits)
        assert chosen.predictor.demos == program.predictor.demos
        assert "no score differed between two prompts" in caplog.text

    @pytest.mark.parametrize("seed", range(3))
    def test_where_only_its_calls_failed(self, seed):
        class Unlucky(Direct):
            def right(self, order, question):
                if order == sorted(order) and digest(question + "!") < 0.3:
                    raise TimeoutError("late")
                return order == sorted(order) or digest(question + order[0]) < 0.5

        program = Unlucky()
        assert [d["question"] for d in program.predictor.demos] == sorted(f"question {i}" for i in range(8))
        chosen, report = compiled(program, seed=seed, max_errors=10_000)
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
                threading.Event().wait(0.04)
                return super().right(order, question)

        _, report = compiled(Slow(), auto="heavy", max_seconds=5.0)
        assert report.stopped == "time limit"
        assert report.comparison is not None
        assert report.comparison.num_candidates > 1


class TestTheCallersTorch:
    def test_inference_mode(self):
        with torch.inference_mode():
            _, report = compiled(Direct(), max_metric_calls=200)
        assert report.stopped == "every score was 1 in 60 calls"

    def test_another_default_device(self):
        before = torch.get_default_device()
        torch.set_default_device("meta")
        try:
            _, report = compiled(Direct(), max_metric_calls=200)
        finally:
            torch.set_default_device(before)
        assert report.stopped == "every score was 1 in 60 calls"

    def test_threads_are_as_they_were_after_compiles_side_by_side(self):
        def numbers():
            return [pool["num_threads"] for pool in threadpool_info()], torch.get_num_threads()

        before, inside = numbers(), []

        def work(_):
            for _ in range(50):
                with one_thread():
                    inside.append(torch.get_num_threads())

        with ThreadPoolExecutor(8) as executor:
            list(executor.map(work, range(8)))
        assert set(inside) == {1}
        assert numbers() == before


class TestThompsonSearchByItself:
    def search(self, **options):
        return ThompsonSearch(OrderingSpace.of_sizes(4), **{"num_examples": 10, **options})

    def test_a_bad_trial_leaves_it_as_it_was(self):
        search, other = (self.search(example_classes=[0, 1] * 5) for _ in range(2))
        for each in (search, other):
            each.tell([Trial(o, 0.5, 2, ((0, 1.0), (1, 0.0))) for o in each.ask()])
        good = ((3, 2, 1, 0),)
        for scores in [((10, 1.0),), (("a", 1.0),), ((-1, 1.0),), ((True, 1.0),), ()]:
            with pytest.raises(ValueError, match=r"example|scores"):
                search.tell([Trial(good, 0.5, 1, ((2, 1.0),)), Trial(good, 0.5, 1, scores)])
        for each in (search, other):
            each.tell([Trial(good, 0.5, 1, ((np.int64(2), np.float64(1.0)),))])
        assert search.ask() == other.ask()

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *[("num_examples", value) for value in (0, -1, 2.5, True, None)],
            *[("num_initial", value) for value in (0, -1, 2.5)],
            *[("seed", value) for value in (-1, 0.5)],
            ("example_classes", [0, 1]),
        ],
    )
    def test_arguments_out_of_range_are_refused_by_name(self, name, value):
        with pytest.raises(ValueError, match=name):
            self.search(**{name: value})

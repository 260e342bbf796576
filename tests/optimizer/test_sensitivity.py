"""Whether order matters: the statistics, and the whole with a fake LM."""

import math

import dspy
import numpy as np
import pytest
from fakes import engine_for, exact_match, failure, questions, using
from fakes import student as showing
from scipy import special, stats

from plr_dspy import OrderSensitivity, order_sensitivity
from plr_dspy.statistics import comparisons

HUGE = math.factorial(40)


def analysed(scores, num_distinct=HUGE, **options):
    searched = options.pop("num_searched", min(num_distinct, 100))
    return comparisons.spread(
        np.asarray(scores, dtype=float), num_distinct=num_distinct, num_searched=searched, **options
    )


class TestSpread:
    @pytest.mark.parametrize(("better", "worse"), [(9, 1), (12, 9), (0, 6), (3, 3)])
    def test_the_test_of_two_orders_is_mcnemars(self, better, worse):
        """Return the p-value of a binomial test on examples that differ."""
        scores = np.ones((2, 40))
        scores[0, :better] = scores[1, better : better + worse] = 0
        expected = stats.binomtest(better, better + worse).pvalue
        assert analysed(scores, 2).p_value == pytest.approx(expected, abs=0.03)

    def test_an_own_order_that_was_always_right_may_be_beaten_on_other_examples(self):
        """By a metric over a set, too, which cannot be above 1."""
        rng = np.random.default_rng(0)
        scores = np.vstack([np.ones(20), rng.random((4, 20)) < 0.8])
        plain, bounded = (analysed(scores, 24, bounds=bounds) for bounds in (None, (0.0, 1.0)))
        assert bounded.gain_interval == pytest.approx(plain.gain_interval)
        assert bounded.gain_interval[1] > 0.05

    def test_the_deviation_is_that_of_an_analysis_of_variance(self):
        scores = np.random.default_rng(0).random((6, 20)) + np.linspace(0, 0.9, 6)[:, None]
        residuals = scores - scores.mean(axis=0) - (scores.mean(axis=1) - scores.mean())[:, None]
        variance = scores.mean(axis=1).var(ddof=1) - (residuals**2).sum() / 5 / 19 / 20
        assert analysed(scores, 6).deviation == pytest.approx(math.sqrt(variance * 5 / 6))

    def test_a_chosen_order_is_no_part_of_what_others_are_like(self):
        """The program's own order does far better than all others."""
        rng = np.random.default_rng(4)
        scores = (rng.random((10, 60)) < 0.5).astype(float)
        scores[0] = 1
        report = analysed(scores)
        assert report.p_value < 0.01
        assert report.deviation < 0.05
        assert report.expected_gain == pytest.approx(0.0, abs=0.01)
        assert report.gain_interval == (0.0, pytest.approx(0.0, abs=0.03))


def tables(count, num_distinct, *, deviation, num_examples=30, common=False, num_orders=10):
    """Return scores of orders, and the true ones."""
    rng = np.random.default_rng(7)
    for _ in range(count):
        effects = rng.normal(size=min(num_distinct, 100))
        if num_distinct < 100:
            effects = (effects - effects.mean()) / effects.std()
        true = np.clip(0.7 + deviation * effects, 0.02, 0.98)
        scored = min(num_orders, len(true))
        likes = rng.choice([-1.0, 1.0], size=(scored, 1)) if common else 1.0
        likes = likes * rng.normal(size=(1 if common else scored, num_examples))
        easiness = rng.normal(size=num_examples)
        levels = math.sqrt(2) * special.ndtri(true)[:scored, None]
        yield (levels + easiness + likes > 0).astype(float), true


class TestSimulated:
    @pytest.fixture(autouse=True)
    def few_draws(self, monkeypatch):
        monkeypatch.setattr(comparisons, "NUM_FLIPS", 499)
        monkeypatch.setattr(comparisons, "NUM_DRAWS", 1_000)

    @pytest.mark.parametrize("common", [False, True])
    def test_chance_alone_seldom_looks_like_an_effect(self, common):
        """Nor do likings of the examples that cancel out."""
        drawn = tables(300, HUGE, deviation=0.0, common=common)
        p_values = np.array([analysed(scores).p_value for scores, _ in drawn])
        assert 0.01 < (p_values <= 0.05).mean() < 0.09

    @pytest.mark.parametrize("num_distinct", [2, 6, 24, HUGE])
    @pytest.mark.parametrize("deviation", [0.0, 0.1])
    def test_intervals_hold_the_truth(self, num_distinct, deviation):
        covered = np.zeros(2)
        for scores, true in tables(150, num_distinct, deviation=deviation):
            report = analysed(scores, num_distinct)
            spread_of_all = true.std() if num_distinct < 100 else deviation
            ends = (report.deviation_interval, report.gain_interval)
            for i, value in enumerate((spread_of_all, true.max() - true[0])):
                covered[i] += ends[i][0] - 1e-9 <= value <= ends[i][1] + 1e-9
        assert (covered / 150 > 0.9).all()


def result(**changes):
    values = {"scores": [0.5, *np.linspace(0.4, 0.8, 9)], "num_distinct": 40_320, "num_searched": 100}
    values |= {"num_examples": 30, "num_unusable": 0, "program_calls": 300, "p_value": 0.001}
    values |= {"deviation": 0.1, "deviation_interval": (0.06, 0.2)}
    values |= {"expected_gain": 0.3, "gain_interval": (0.1, 0.5)}
    return OrderSensitivity(**{**values, **changes})


AGAIN = "no search yet. For more certainty, run this again with more calls (max_metric_calls) or more examples."


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "a search with PLReorder, because the gain justifies its calls."),
        ({"p_value": 0.3, "gain_interval": (0.0, 0.004)}, "no search, because there is too little to gain."),
        ({"expected_gain": 0.0, "gain_interval": (0.0, 0.004)}, "no search, because there is too little to gain."),
        ({"gain_interval": (0.0, 0.5)}, AGAIN),
        ({"p_value": 0.3, "gain_interval": (0.0, 0.4)}, AGAIN),
    ],
)
def test_each_cause_has_one_recommendation_at_the_end(changes, says):
    text = str(result(**changes))
    assert text.splitlines()[-1] == f"Recommended: {says}"
    assert text.count("Recommended:") == 1


def student(num_demos=5):
    demos = []
    for i in range(num_demos):
        demos.append(dspy.Example(question=f"demo {i}", answer=f"answer {i % 3}"))
    return showing(demos)


def measured(examples, program=None, metric=exact_match, engine=None, **options):
    engine = engine or engine_for(examples)
    with using(engine):
        report = order_sensitivity(program or student(), metric, examples, **options)
    return report, engine


SHOWN = [demo.with_inputs("question") for demo in student().demos]


class TestOrderSensitivity:
    def test_of_a_model_that_minds_the_order(self):
        program = student()
        examples = questions(30)
        before = program.dump_state()
        report, engine = measured(examples, program)
        with using(engine):
            own = float(np.mean([exact_match(e, program(**e.inputs())) for e in examples]))
        assert report.program_calls == 10 * 30 == engine.num_calls - 30
        assert report.matters
        assert report.scores[0] == pytest.approx(own)
        assert len(report.scores) == 10
        assert report.num_distinct == 120
        assert 0 < report.gain_interval[0] <= report.expected_gain <= report.gain_interval[1]
        assert "Recommended: a search with PLReorder, because the gain justifies its calls." in str(report)
        assert program.dump_state() == before

    @pytest.mark.parametrize(
        ("num_demos", "limit", "orders", "num_examples"),
        [(5, 300, 10, 30), (2, 300, 2, 100), (3, 299, 6, 49), (5, 100, 10, 10), (3, None, 6, 100)],
    )
    def test_calls_are_split_into_orders_and_examples_that_are_drawn_at_random(
        self, num_demos, limit, orders, num_examples
    ):
        """Not the first ones: these may be of one kind."""
        report, engine = measured(questions(100), student(num_demos), max_metric_calls=limit)
        assert len(report.scores) == orders
        assert report.num_examples == num_examples
        assert report.program_calls == engine.num_calls == orders * num_examples
        asked = {texts[-1].split("\n")[1] for texts in engine.requests}
        assert len(asked) == num_examples
        assert asked != {f"question {i}" for i in range(num_examples)} or num_examples == 100

    def test_replies_that_cannot_be_read_end_it(self):
        examples = questions(100)
        with pytest.raises(RuntimeError, match=r"20 of 20 .*Well, let me see"):
            measured(examples, engine=engine_for(examples, mumbles=lambda texts: True))

    def test_scores_that_are_all_the_same_do_not_say_that_there_is_nothing_to_find(self):
        """At a score of .9, thirty right answers may be luck."""
        engine = engine_for(questions(100), at={57: failure})
        report, _ = measured(questions(100), metric=lambda example, prediction: 1.0, engine=engine)
        assert engine.num_calls == 300
        assert report.num_examples == 30
        assert report.gain_interval[1] > 0.05
        assert "no search yet" in str(report)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"num_orders": 2}, "num_orders"),
            ({"max_metric_calls": 99}, "max_metric_calls must be at least 100.*lower num_orders"),
            ({"max_metric_calls": 29, "num_orders": 3}, "at least 30 for 3 orders; got 29: raise it"),
            ({"program": student(1)}, "at least 2 distinct orders of its demos"),
            ({"program": student(0)}, "^program has no demos"),
            ({"program": dspy.Predict}, "^program must be a dspy.Module"),
            ({"dataset": SHOWN}, "^dataset must contain at least two examples .*; of the 5 .* 0 are left"),
        ],
    )
    def test_bad_arguments_cost_nothing(self, wrong, message):
        examples = questions(20)
        arguments = {"program": student(), "metric": exact_match, "dataset": examples, **wrong}
        with using(engine_for(examples)) as engine, pytest.raises((TypeError, ValueError), match=message):
            order_sensitivity(**arguments)
        assert engine.num_calls == 0

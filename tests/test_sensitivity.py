"""Whether order matters: the statistics against closed forms and simulations, and the whole with a fake LM."""

import math

import dspy
import numpy as np
import pytest
from fakes import chat_response, exact_match, fake_lm, questions
from scipy import stats

from plr_dspy import order_sensitivity, spread
from plr_dspy.spread import expected_maximum


class TestSpread:
    @pytest.mark.parametrize(
        ("count", "expected"), [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi))]
    )
    def test_the_largest_of_some_normal_draws(self, count, expected):
        assert expected_maximum(count) == pytest.approx(expected, abs=1e-9)

    def test_the_largest_of_many_normal_draws(self):
        draws = np.random.default_rng(0).normal(size=(20_000, 100)).max(axis=1)
        assert expected_maximum(100) == pytest.approx(draws.mean(), abs=4 * draws.std() / math.sqrt(20_000))

    def test_p_value_is_that_of_cochrans_q(self):
        """For right-or-wrong scores and many examples: Cochran (1950), chi-squared with R - 1 degrees of freedom."""
        rng = np.random.default_rng(1)
        for effect in (0.0, 0.06, 0.12):
            scores = (rng.random((6, 400)) < 0.5 + effect * np.linspace(-1, 1, 6)[:, None]).astype(float)
            rows, columns, count = scores.sum(axis=1), scores.sum(axis=0), len(scores)
            q = (count - 1) * (count * (rows**2).sum() - rows.sum() ** 2)
            q /= count * columns.sum() - (columns**2).sum()
            assert spread.spread(scores).p_value == pytest.approx(stats.chi2.sf(q, count - 1), abs=0.02)

    def test_chance_alone_seldom_looks_like_an_effect(self, monkeypatch):
        monkeypatch.setattr(spread, "NUM_PERMUTATIONS", 199)
        rng = np.random.default_rng(2)
        tables = (rng.random((300, 8, 30)) < rng.random((300, 1, 30))).astype(float)
        p_values = np.array([spread.spread(table).p_value for table in tables])
        assert 0.02 < (p_values <= 0.05).mean() < 0.09
        assert 0.4 < (p_values <= 0.5).mean() < 0.6

    def test_deviation_is_that_of_the_true_scores(self, monkeypatch):
        monkeypatch.setattr(spread, "NUM_PERMUTATIONS", 1)
        rng = np.random.default_rng(3)
        covered, found = 0, []
        for _ in range(200):
            effects, ease = rng.normal(0, 0.05, size=(12, 1)), rng.normal(0.6, 0.1, size=(1, 100))
            result = spread.spread(effects + ease + rng.normal(0, 0.2, size=(12, 100)))
            covered += result.interval[0] <= 0.05 <= result.interval[1]
            found.append(result.deviation**2)
        assert np.mean(found) == pytest.approx(0.05**2, rel=0.15)
        assert covered / 200 > 0.9

    def test_equal_scores_have_no_spread(self):
        found = spread.spread(np.tile([0.0, 1.0, 1.0], (4, 1)))
        assert (found.p_value, found.noise, found.deviation, found.interval) == (1.0, 0.0, 0.0, (0.0, 0.0))

    def test_one_order_is_refused(self):
        with pytest.raises(ValueError, match="at least 2 orders"):
            spread.spread(np.ones((1, 5)))


class IndifferentEngine:
    """Answers by the question alone."""

    def complete(self, request):
        return chat_response("[[ ## answer ## ]]\nanswer 0\n\n[[ ## completed ## ]]")


def student(num_demos=5):
    program = dspy.Predict("question -> answer")
    program.demos = [dspy.Example(question=f"demo {i}", answer=f"answer {i % 3}") for i in range(num_demos)]
    return program


def quiet(**options):
    return {"num_threads": 4, "display_progress": False, **options}


class TestOrderSensitivity:
    def test_of_a_model_that_minds_the_order(self):
        examples = questions(60)
        lm, engine = fake_lm(examples)
        program = student()
        before = program.dump_state()
        with dspy.context(lm=lm):
            found = order_sensitivity(program, exact_match, examples, **quiet())
            (own,) = {float(np.mean([exact_match(e, program(**e.inputs())) for e in examples]))}
        assert found.program_calls == 12 * 60 == engine.num_calls - 60
        assert found.matters
        assert found.scores[0] == pytest.approx(own)
        assert len(found.scores) == 12
        assert 0 < found.gain_interval[0] <= found.expected_gain <= found.gain_interval[1]
        assert "a search is worth its calls" in str(found)
        assert program.dump_state() == before

    def test_the_gain_it_expects_is_about_what_there_is(self):
        """Of all 120 orders the best, against the program's own."""
        examples = questions(30)
        lm, _ = fake_lm(examples)
        with dspy.context(lm=lm):
            sampled = order_sensitivity(student(), exact_match, examples, 24, **quiet())
            all_orders = order_sensitivity(student(), exact_match, examples, 120, **quiet())
        true = max(all_orders.scores) - all_orders.scores[0]
        assert all_orders.num_searched == sampled.num_searched == 100
        assert sampled.expected_gain == pytest.approx(true, abs=0.15)

    def test_of_a_model_that_does_not(self):
        with dspy.context(lm=dspy.LM("fake/indifferent", engine=IndifferentEngine(), cache=False)):
            found = order_sensitivity(student(), exact_match, questions(30), **quiet())
        assert not found.matters
        assert found.expected_gain == 0.0
        assert "nothing to find" in str(found)

    def test_chance_is_called_chance(self):
        examples = questions(40)
        with dspy.context(lm=dspy.LM("fake/indifferent", engine=IndifferentEngine(), cache=False)):
            rng = np.random.default_rng(0)
            found = order_sensitivity(
                student(), lambda e, p, t=None: rng.random(), examples, **quiet(num_threads=1)
            )
        assert not found.matters
        assert "unlikely to pay" in str(found)

    def test_few_orders_are_all_scored(self):
        examples = questions(20)
        lm, _ = fake_lm(examples)
        with dspy.context(lm=lm):
            found = order_sensitivity(student(3), exact_match, examples, **quiet())
        assert len(found.scores) == found.num_searched == 6

    def test_what_was_paid_is_kept(self, tmp_path):
        examples = questions(20)
        lm, engine = fake_lm(examples)
        with dspy.context(lm=lm):
            first = order_sensitivity(student(), exact_match, examples, **quiet(log_dir=tmp_path))
            calls = engine.num_calls
            assert order_sensitivity(student(), exact_match, examples, **quiet(log_dir=tmp_path)) == first
        assert engine.num_calls == calls

    def test_an_error_of_the_metric_comes_out(self):
        def broken(example, prediction, trace=None):
            raise ZeroDivisionError("mine")

        examples = questions(20)
        lm, _ = fake_lm(examples)
        with dspy.context(lm=lm), pytest.raises(ZeroDivisionError, match="mine"):
            order_sensitivity(student(), broken, examples, **quiet(max_errors=3))

    @pytest.mark.parametrize(
        ("wrong", "error", "message"),
        [
            ({"num_orders": 2}, ValueError, "num_orders"),
            ({"program": student(1)}, ValueError, "one order of its demos only"),
            ({"program": student(0)}, ValueError, "no demos"),
            ({"dataset": []}, ValueError, "dataset"),
            ({"metric": "accuracy"}, TypeError, "metric"),
            ({"seed": -1}, ValueError, "seed"),
        ],
    )
    def test_bad_arguments_cost_nothing(self, wrong, error, message):
        examples = questions(20)
        lm, engine = fake_lm(examples)
        arguments = {"program": student(), "metric": exact_match, "dataset": examples, **wrong}
        with dspy.context(lm=lm), pytest.raises(error, match=message):
            order_sensitivity(**arguments, **quiet())
        assert engine.num_calls == 0

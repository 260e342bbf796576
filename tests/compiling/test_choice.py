"""The finalists and the choice among them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import ORDERINGS, TablePayer, table

from plr_dspy import CrossEntropySearch, OrderingSpace
from plr_dspy.compiling.choice import Result, choose, compare_finalists, count_evidence
from plr_dspy.compiling.comparison import compare_mean_scores
from plr_dspy.compiling.paper import PaperRun, paper_plan
from plr_dspy.compiling.plan import ProblemSize
from plr_dspy.report.schema import Evidence
from plr_dspy.scoring.effective_scores import EffectiveScores
from plr_dspy.scoring.evaluator import Evaluator
from plr_dspy.scoring.observations import Observations
from plr_dspy.scoring.run_log import CallRecord
from plr_dspy.search.model.ordering_model import Gain, OrderingModel
from plr_dspy.search.space import WholeProgram
from plr_dspy.statistics.comparisons import paired_interval, paired_probability


def result(expected, probability=0.8, *, score=0.5, estimate=None, **gain):
    estimate = expected if estimate is None else estimate
    return Result((), score, Gain(expected, probability, **gain), estimate)


def results(gains, probabilities=None):
    if probabilities is None:
        return [result(gain) for gain in gains]
    pairs = zip(gains, probabilities, strict=True)
    return [result(gain, probability) for gain, probability in pairs]


def compared_by(before, after, **options):
    return compare_mean_scores(
        before, after, expected_original=(0.5, 0.0, 1.0), expected_chosen=(0.5, 0.0, 1.0), **options
    )


def observed(scores):
    observations = Observations(EffectiveScores())
    for ordering, row in scores.items():
        records = {example: CallRecord(score) for example, score in row.items()}
        observations.add({ordering: records})
    return observations


def compiled_by_the_paper(scores, **options):
    plan = paper_plan(ProblemSize(num_train=30, num_selection=10, num_distinct=24), **options)
    search = CrossEntropySearch(OrderingSpace.of_sizes(4), num_samples=15)
    payer = TablePayer(scores)
    options = {"plan": plan, "num_train": 30, "original": ORDERINGS[0]}
    return search, PaperRun(search, Evaluator(payer), **options).run().decision


@pytest.mark.parametrize("favorite", [ORDERINGS[0], ORDERINGS[-1]])
def test_finalists_of_the_paper_are_original_best_mode_and_draws_without_duplicates(favorite):
    scores = table()
    scores[ORDERINGS.index(favorite)] = 1.0
    search, decision = compiled_by_the_paper(scores, num_iterations=30)
    entries = decision.results
    orderings = [entry.candidate for entry in entries]
    assert orderings[0] == ORDERINGS[0]
    assert len(set(orderings)) == len(orderings) <= 1 + 1 + 1 + 10
    assert {search.mode(), favorite} <= set(orderings)
    assert decision.candidate == favorite


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_the_paper_chooses_the_best_selection_score_even_if_a_gain_is_improbable(seed):
    scores = table()
    scores[:] = np.random.default_rng(seed).random(np.shape(scores)) < 0.6
    _, decision = compiled_by_the_paper(scores, num_iterations=3)
    means = [candidate.score for candidate in decision.results]
    assert decision.chosen == means.index(max(means))
    assert decision.results[decision.chosen].candidate == decision.candidate
    assert decision.comparison.probability < 0.5


class TestChoice:
    @given(st.lists(st.sampled_from([-0.1, 0.0, 0.2]), max_size=8))
    def test_the_largest_expected_gain_is_chosen_and_the_first_wins_ties(self, expected):
        gains = [0.0, *expected]
        assert choose(results(gains)) == gains.index(max(gains))

    @given(
        st.lists(st.tuples(st.floats(-1, 1), st.sampled_from([0.0, 0.4, 0.5, 0.7, 0.9, 1.0])), max_size=8),
        st.sampled_from([0.5, 0.9, 1.0]),
    )
    def test_gains_below_the_minimum_probability_are_not_chosen(self, others, least):
        gains = [0.0, *(g for g, _ in others)]
        probabilities = [0.0, *(p for _, p in others)]
        chosen = choose(results(gains, probabilities), min_probability=least)
        assert not chosen or probabilities[chosen] >= least
        assert all(g <= gains[chosen] for g, p in zip(gains, probabilities, strict=True) if p >= least)

    @given(st.floats(0.0, 0.5), st.floats(0.0, 0.5), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
    def test_without_a_minimum_probability_the_odds_of_a_gain_decide(self, p, worse, calibrated, other):
        odds = {"worse": worse, "probability_alike": calibrated, "worse_alike": other}
        likely = min(p, calibrated) > 0 and p >= 3 * worse and calibrated >= 3 * other
        assert choose([result(0.0, 0.0), result(0.1, p, **odds)]) == likely

    def test_a_choice_must_beat_the_calibrated_original_and_estimates_break_ties(self):
        odds = ((0.1, 0.5, 0.1), (0.2, 0.4, 0.2))
        surer, less = (
            result(gain, 0.9, probability_alike=better, worse_alike=worse) for gain, better, worse in odds
        )
        assert choose([result(0.0, 0.0), less]) == 0
        assert choose([result(0.0, 0.0), less, surer]) == 2
        others = [result(0.2), result(0.2, estimate=0.3), result(0.2)]
        assert choose([result(0.0, 0.0), *others]) == 2

    @given(
        st.lists(st.tuples(st.sampled_from([0.4, 0.6, 0.7]), st.floats(-1, 1), st.floats(0, 1)), max_size=8)
    )
    def test_by_score_the_best_selection_score_is_chosen(self, others):
        finalists = [result(0.0, 0.0)]
        for score, gain, probability in others:
            finalists.append(result(gain, probability, score=score))
        scores = [finalist.score for finalist in finalists]
        chosen = choose(finalists, min_probability=0.0, by_score=True)
        assert chosen == scores.index(max(scores))

    @given(st.floats(0.0, 0.2), st.sampled_from([0.0, 0.5, 0.9, 0.97, 0.98, 1.0]), st.floats(0.0, 0.5))
    def test_the_interval_of_a_gain_includes_losses_unless_a_gain_is_very_probable(
        self, gain, p, deviation
    ):
        expected = Gain(gain, p, deviation=deviation)
        low, high = compared_by([0.0, 1.0], [1.0, 1.0], num_candidates=2, gain=expected).gain_interval
        assert low >= 0.0 if p > 0.975 else low <= 0.0
        assert low - 1e-6 <= gain <= high

    def test_a_finalist_that_trails_on_common_examples_is_probably_worse(self):
        """Only the common examples count. The original leads on the common examples, but not on all examples."""
        model = OrderingModel(OrderingSpace.of_sizes(4))
        finalists = ORDERINGS[:6]
        against = 0
        levels = [np.linspace(0.9, 0.5, 6), np.linspace(0.4, 0.9, 6)]
        chances = np.repeat(levels, [15, 20], axis=0).T
        for seed in range(20):
            table = (np.random.default_rng(seed).random((6, 35)) < chances).astype(float)
            examples = ([*range(15), *range(20 * i + 20, 20 * i + 40)] for i in range(6))
            rows = []
            for numbers, row in zip(examples, table.tolist(), strict=True):
                rows.append(dict(zip(numbers, row, strict=True)))
            scores = dict(zip(ORDERINGS, rows, strict=False))
            observations = observed(scores)
            arguments = finalists, range(15), observations, model
            decision = compare_finalists(*arguments, min_probability=None)
            for other, row in zip(decision.results, table, strict=True):
                if other.gain.expected > 0 and row[:15].sum() < table[0, :15].sum():
                    against += 1
                    assert other.gain.probability < 0.5 < other.gain.worse
        assert against > 5

    def test_evidence_and_comparison_of_known_scores(self):
        """All scores on example 0 are equal, and examples 2 and 3 each have only one score."""
        scores = {"a": {0: 1.0, 1: 1.0, 2: 0.0}, "b": {0: 1.0, 1: 0.0}, "c": {1: 0.0, 3: 1.0}}
        counts = {"num_met": 2, "num_differing": 1, "num_compared": 2}
        assert count_evidence(scores, "a", "b") == Evidence(**counts)
        counts = {"num_met": 2, "num_differing": 1, "num_compared": 1}
        assert count_evidence(scores, "a", "c") == Evidence(**counts)
        before = [0.0, 1.0, 1.0, 0.0]
        after = [1.0, 1.0, 1.0, 0.0]
        compared = compared_by(before, after, num_candidates=4, gain=Gain(0.1, 0.98))
        assert compared.original == 0.5
        assert compared.chosen == 0.75
        assert compared.gain == 0.25
        assert compared.interval == paired_interval([1.0, 0.0, 0.0, 0.0], num_comparisons=3)
        assert compared.expected_gain == 0.1
        assert compared.probability == 0.98
        # The interval extends to the observed gain, because the model may shrink the gain too strongly.
        # The chosen score may be 0, so the interval also includes a gain of 0.
        assert compared.gain_interval == (0.0, 0.25)

    @pytest.mark.parametrize(("original_stays", "half_width"), [(False, 1.0), (True, 0.0)])
    def test_equal_scores_on_few_examples_do_not_prove_that_programs_are_equal(
        self, original_stays, half_width
    ):
        options = {"num_candidates": 3, "gain": Gain(0.1, 0.8), "original_stays": original_stays}
        compared = compared_by([1.0, 1.0], [1.0, 1.0], **options)
        low, high = paired_interval([0.0, 0.0], num_comparisons=2, largest=half_width)
        assert compared.interval == (max(low, -1.0), min(high, 1.0))

    def test_the_minimum_probability_also_applies_to_the_calibrated_original(self):
        finalists = [result(0.0, 0.0), result(0.2, 0.95, probability_alike=0.6)]
        assert [choose(finalists, min_probability=least) for least in (0.6, 0.9)] == [1, 0]

    def test_few_differing_scores_limit_the_probability_of_a_gain(self):
        """The scores differ on only 5 of 80 examples."""
        original = ORDERINGS[0]
        best = ORDERINGS[10]
        model = OrderingModel(OrderingSpace.of_sizes(4))
        row = {example: float(example >= 5) for example in range(80)}
        scores = dict.fromkeys(ORDERINGS[:6], row)
        scores[best] = dict.fromkeys(range(80), 1.0)
        sure = paired_probability([1.0] * 5 + [0.0] * 75)
        finalists = [original, best]
        arguments = finalists, range(80), observed(scores), model
        decision = compare_finalists(*arguments, min_probability=0.985)
        assert decision.results[1].gain.probability == pytest.approx(sure)
        assert sure < 0.985
        assert decision.candidate == original

    @pytest.mark.parametrize("num_won", [0, 1])
    def test_examples_that_only_one_order_was_scored_on_are_no_evidence_of_a_gain(self, num_won):
        """The best order has a perfect score. The original fails on examples that the best was not scored on."""
        original = ORDERINGS[0]
        best = ORDERINGS[10]
        model = OrderingModel(OrderingSpace.of_sizes(4))
        rng = np.random.default_rng(0)
        scores = {}
        for number, ordering in enumerate(ORDERINGS[:20]):
            quality = (0.9, 0.6)[number % 2]
            examples = rng.choice(40, 12, replace=False).tolist()
            scores[ordering] = {example: float(rng.random() < quality) for example in examples}
        scores[original] = {example: float(example >= 6) for example in range(40)}
        scores[best] = dict.fromkeys(range(6 - num_won, 40), 1.0)
        decision = compare_finalists(
            [original, best], range(20, 40), observed(scores), model, min_probability=None
        )
        gain = decision.results[1].gain
        differences = [float(number < num_won) for number in range(34 + num_won)]
        assert gain.probability <= paired_probability(differences)
        assert (gain.worse < 1.0 - gain.probability) == bool(num_won)
        assert decision.candidate == (best if num_won else original)


class TestOwnPrograms:
    """Choices among the original, one of the user's programs and a searched ordering, on 40 examples."""

    ORIGINAL = ORDERINGS[0]
    OWN = WholeProgram(0, "theirs")
    SEARCHED = ORDERINGS[5]

    def decided(self, own, searched, *, min_probability=None):
        """Return the decision among the three candidates.

        Args:
            own: Numbers of the original's incorrect and correct answers that the user's program changes.
            searched: Numbers of these answers that the searched ordering changes.
            min_probability: The minimum probability of a gain.
        """
        space = OrderingSpace(OrderingSpace.of_sizes(4).kinds, programs=(self.OWN,))
        right = np.arange(40) % 2
        scores = {}
        for ordering, (gained, lost) in {
            self.ORIGINAL: (0, 0),
            self.OWN: own,
            self.SEARCHED: searched,
        }.items():
            row = right.copy()
            row[np.flatnonzero(right == 0)[:gained]] = 1
            row[np.flatnonzero(right)[:lost]] = 0
            scores[ordering] = dict(enumerate(row.astype(float).tolist()))
        return compare_finalists(
            list(scores),
            range(40),
            observed(scores),
            OrderingModel(space),
            min_probability=min_probability,
            user_programs=[self.OWN],
        )

    def test_a_user_program_that_is_probably_better_replaces_the_original(self):
        decision = self.decided((8, 4), (4, 4))
        gain = decision.results[1].gain
        assert gain.worse < gain.probability < 3 * gain.worse
        assert decision.candidate == self.OWN
        assert self.decided((4, 8), (4, 4)).candidate == self.ORIGINAL

    @pytest.mark.parametrize("searched", [(0, 0), (4, 4), (5, 0)])
    def test_a_user_program_with_equal_scores_does_not_replace_the_original(self, searched):
        assert self.decided((0, 0), searched).candidate != self.OWN

    def test_a_minimum_probability_applies_to_all_candidates(self):
        assert self.decided((8, 4), (4, 4), min_probability=0.9).candidate == self.ORIGINAL
        assert self.decided((12, 2), (13, 3), min_probability=0.9).candidate == self.OWN
        assert self.decided((12, 2), (20, 0), min_probability=0.9).candidate == self.SEARCHED

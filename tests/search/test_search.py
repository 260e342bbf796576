import json
import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from plr_dspy import (
    CrossEntropySearch,
    ExhaustiveSearch,
    MaximumLikelihood,
    MixtureEM,
    OrderingSpace,
    RankEMA,
)
from plr_dspy.compilation.evidence import weigh
from plr_dspy.compilation.final_comparison import (
    Finalist,
    Result,
    affordable_examples,
    choose,
    comparison,
    finalists,
)
from plr_dspy.orderings.trials import Iteration, Trial
from plr_dspy.report.schema import Evidence
from plr_dspy.search.enumeration import RandomSearch
from plr_dspy.search.loop import Progress, run
from plr_dspy.search.proposal import elite_weights
from plr_dspy.search.search import num_elites
from plr_dspy.search.stopping import Converged, Patience, TargetScore
from plr_dspy.search.surrogate.fitted_model import Gain
from plr_dspy.statistics.comparisons import mean_interval, paired_interval


class SortedObjective:
    """The share of pairs in ascending order, averaged over the blocks; remembers what was asked."""

    def __init__(self):
        self.known = {}

    @property
    def program_calls(self):
        return len(self.known)

    def cost(self, orderings):
        return len(set(orderings) - self.known.keys())

    def __call__(self, orderings):
        for ordering in orderings:
            shares = []
            for block in ordering:
                pairs = [(a, b) for i, a in enumerate(block) for b in block[i + 1 :]]
                shares.append(sum(a > b for a, b in pairs) / len(pairs))
            self.known[ordering] = sum(shares) / len(shares)
        return [Trial(ordering, self.known[ordering], 1) for ordering in orderings]


UPDATES = ["ema", "mle", "mixture"]


class TestCrossEntropySearch:
    @pytest.mark.parametrize("update", UPDATES)
    @pytest.mark.parametrize("archive", [False, True])
    def test_learns_the_reversed_order(self, update, archive):
        space = OrderingSpace.of_sizes(7)
        search = CrossEntropySearch(space, update=update, num_samples=30, archive=archive, seed=1)
        progress = run(search, SortedObjective(), num_iterations=10)
        assert progress.stopped == "all iterations done"
        assert progress.best(search, 1)[0].score > 0.95
        assert (
            max(iteration.mean_score for iteration in progress.history) > progress.history[0].mean_score + 0.2
        )

    @pytest.mark.parametrize("update", UPDATES)
    def test_searches_blocks_jointly(self, update):
        space = OrderingSpace.of_sizes(4, 5)
        search = CrossEntropySearch(space, update=update, num_samples=30, seed=0)
        run(search, SortedObjective(), num_iterations=12)
        assert len(search.distributions) == 2
        objective = SortedObjective()
        assert objective([search.mode()])[0].score > 0.9

    def test_paper_mode_asks_for_independent_draws(self):
        search = CrossEntropySearch(OrderingSpace.of_sizes(3), num_samples=40, seed=0)
        assert len(search.ask()) == 40
        assert len(set(search.ask())) <= 6

    def test_paper_mode_elites_are_the_best_of_the_last_round_only(self):
        search = CrossEntropySearch(OrderingSpace.of_sizes(4), num_samples=10, elite_fraction=0.3)
        search.tell([Trial(o, 1.0, 1) for o in search.ask()])
        second = search.ask()
        elites = search.tell([Trial(o, i / 100, 1) for i, o in enumerate(second)])
        assert [elite.score for elite in elites] == [0.09, 0.08, 0.07]

    def test_archive_never_repeats_an_ordering_and_keeps_the_best_of_all_rounds(self):
        space = OrderingSpace.of_sizes(4)
        search = CrossEntropySearch(space, num_samples=7, archive=True, seed=0)
        asked, objective = [], SortedObjective()
        while orderings := search.ask():
            asked += orderings
            elites = search.tell(objective(orderings))
            assert elites[0].score == max(objective.known.values())
            if len(asked) > 24:
                raise AssertionError("an ordering was asked for twice")
        assert asked[0] == space.identity
        assert len(set(asked)) == len(asked) == 24

    def test_archive_elites_are_as_many_as_those_of_one_round(self):
        search = CrossEntropySearch(
            OrderingSpace.of_sizes(5), num_samples=10, elite_fraction=0.3, archive=True
        )
        for number, best in enumerate([[0.09, 0.08, 0.07], [1.09, 1.08, 1.07], [2.09, 2.08, 2.07]]):
            trials = [Trial(o, number + i / 100, 1) for i, o in enumerate(search.ask())]
            assert [elite.score for elite in search.tell(trials)] == best

    def test_one_update_is_the_rule_applied_to_the_elites(self):
        rule = MaximumLikelihood(num_steps=5)
        search = CrossEntropySearch(OrderingSpace.of_sizes(3), update=rule, num_samples=2, elite_fraction=0.5)
        trials = [Trial(((2, 0, 1),), 0.9, 1), Trial(((0, 1, 2),), 0.1, 1)]
        search.tell(trials)
        expected = rule.update(rule.initial(3), torch.tensor([[2, 0, 1]])).logits
        torch.testing.assert_close(search.distributions[0].logits, expected)

    def test_weighted_elites(self):
        rule = RankEMA(weighted=True)
        search = CrossEntropySearch(OrderingSpace.of_sizes(2), update=rule, elite_fraction=1.0)
        search.tell([Trial(((0, 1),), 0.3, 1), Trial(((1, 0),), 0.1, 1)])
        expected = rule.update(rule.initial(2), torch.tensor([[0, 1], [1, 0]]), torch.tensor([3.0, 1.0]))
        torch.testing.assert_close(search.distributions[0].logits, expected.logits)

    @pytest.mark.parametrize("update", [*UPDATES, MixtureEM(num_components=2)])
    @pytest.mark.parametrize("archive", [False, True])
    def test_goes_on_from_a_saved_state(self, update, archive):
        space, objective = OrderingSpace.of_sizes(6), SortedObjective()

        def fresh(seed):
            return CrossEntropySearch(space, update=update, archive=archive, seed=seed)

        search = fresh(3)
        for _ in range(3):
            search.tell(objective(search.ask()))
        state = json.loads(json.dumps(search.state_dict()))
        resumed = fresh(99)
        resumed.load_state_dict(state)
        for _ in range(3):
            expected, actual = search.ask(), resumed.ask()
            assert actual == expected
            search.tell(objective(expected))
            resumed.tell(objective(actual))
        assert resumed.mode() == search.mode()
        assert resumed.draw(5) == search.draw(5)

    def test_same_seed_same_search_and_no_global_seeding(self):
        torch.manual_seed(0)
        before = torch.random.get_rng_state()
        asks = [CrossEntropySearch(OrderingSpace.of_sizes(9), seed=5).ask() for _ in range(2)]
        other = CrossEntropySearch(OrderingSpace.of_sizes(9), seed=6).ask()
        assert asks[0] == asks[1] != other
        assert torch.equal(before, torch.random.get_rng_state())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_samples": 0}, "num_samples"),
            ({"elite_fraction": 0.0}, "elite_fraction"),
            ({"elite_fraction": 1.1}, "elite_fraction"),
            ({"update": "sgd"}, "update"),
        ],
    )
    def test_refuses_bad_options(self, options, message):
        with pytest.raises(ValueError, match=message):
            CrossEntropySearch(OrderingSpace.of_sizes(3), **options)

    @pytest.mark.parametrize("trial", [Trial(((0, 0, 1),), 0.5, 1), Trial(((0, 1, 2),), float("nan"), 1)])
    def test_tell_refuses_what_is_no_trial(self, trial):
        with pytest.raises(ValueError, match=r"permutation|finite"):
            CrossEntropySearch(OrderingSpace.of_sizes(3)).tell([trial])

    def test_refuses_the_state_of_another_space(self):
        state = CrossEntropySearch(OrderingSpace.of_sizes(4)).state_dict()
        with pytest.raises(ValueError, match="blocks"):
            CrossEntropySearch(OrderingSpace.of_sizes(3)).load_state_dict(state)

    def test_refuses_what_is_no_space(self):
        with pytest.raises(TypeError, match="of_sizes"):
            CrossEntropySearch(8)

    def test_tell_needs_trials(self):
        with pytest.raises(ValueError, match="at least one trial"):
            CrossEntropySearch(OrderingSpace.of_sizes(3)).tell([])


class TestExhaustiveSearch:
    def test_asks_for_every_distinct_ordering_once(self):
        space = OrderingSpace(((0, 1, 1, 2),))
        search = ExhaustiveSearch(space, num_samples=5)
        progress = run(search, SortedObjective(), num_iterations=100)
        assert progress.stopped == "no new ordering left"
        assert len(progress.trials) == len({trial.ordering for trial in progress.trials.values()}) == 12
        assert [iteration.num_samples for iteration in progress.history] == [5, 5, 2]

    def test_fits_the_distribution_to_the_best(self):
        search = ExhaustiveSearch(OrderingSpace.of_sizes(4), elite_fraction=0.04)
        run(search, SortedObjective(), num_iterations=10)
        assert search.mode() == ((3, 2, 1, 0),)

    def test_goes_on_from_a_saved_state(self):
        space, objective = OrderingSpace.of_sizes(4), SortedObjective()
        search, resumed = ExhaustiveSearch(space), ExhaustiveSearch(space)
        search.tell(objective(search.ask()))
        resumed.load_state_dict(json.loads(json.dumps(search.state_dict())))
        assert resumed.ask() == search.ask()


class TestLoop:
    def test_counts_distinct_program_calls_and_new_orderings(self):
        search = CrossEntropySearch(OrderingSpace.of_sizes(3), num_samples=20, seed=0)
        progress = run(search, SortedObjective(), num_iterations=4)
        assert progress.history[-1].program_calls == len(progress.trials) <= 6
        assert sum(iteration.num_new for iteration in progress.history) == len(progress.trials)
        assert progress.history[-1].best_score_so_far == progress.best(search, 1)[0].score

    def test_a_round_over_budget_is_cut_short_or_not_begun(self):
        for archive, budget, rounds, sizes in [(True, 34, 3, 10), (True, 36, 4, 6)]:
            search = CrossEntropySearch(OrderingSpace.of_sizes(9), num_samples=10, archive=archive, seed=0)
            objective = SortedObjective()
            progress = run(search, objective, num_iterations=50, max_program_calls=budget)
            assert progress.stopped == "budget"
            assert objective.program_calls <= budget
            assert len(progress.history) == rounds
            assert progress.history[-1].num_samples == sizes

    @pytest.mark.parametrize(("in_time", "rounds"), [(7, 2), (3, 1), (0, 1)])
    def test_a_round_cut_short_by_time(self, in_time, rounds):
        """Fewer than half of a round do not refit the distributions, but they were seen."""

        class Late(SortedObjective):
            def __call__(self, orderings):
                late = bool(self.known)
                return super().__call__(orderings[: in_time if late else None])

        search = CrossEntropySearch(OrderingSpace.of_sizes(9), num_samples=10, archive=True, seed=0)
        finished = []
        progress = run(search, Late(), num_iterations=50, on_iteration=finished.append)
        assert progress.stopped == "time limit"
        assert (len(progress.history), len(progress.trials), len(finished)) == (rounds, 10 + in_time, 1)

    def test_goes_on_from_its_state(self):
        def search():
            return CrossEntropySearch(OrderingSpace.of_sizes(6, 5), num_samples=8, archive=True, seed=3)

        whole = run(search(), SortedObjective(), num_iterations=6)
        first, objective = search(), SortedObjective()
        progress = run(first, objective, num_iterations=2)
        state = json.loads(json.dumps([first.state_dict(), progress.state_dict()]))
        second, rest = search(), Progress.from_state(state[1])
        second.load_state_dict(state[0])
        assert run(second, objective, num_iterations=6, progress=rest) == whole


class TestRandomSearch:
    @pytest.mark.parametrize("num_orderings", [24, 99])
    @pytest.mark.parametrize("seed", range(8))
    def test_as_many_as_there_are_are_all(self, num_orderings, seed):
        space = OrderingSpace.of_sizes(4)
        search = RandomSearch(space, num_orderings=num_orderings, num_samples=1, seed=seed)
        asked = [search.ask() for _ in range(24)]
        assert sorted(batch[0] for batch in asked if batch) == sorted(space.enumerate())
        assert asked[0] == [space.identity]
        assert search.ask() == []


def history(*best_so_far, mode_probability=(0.5,)):
    return [
        Iteration(
            i,
            5,
            5,
            score,
            score,
            score,
            score,
            ((int(10 * score),),),
            5 * (i + 1),
            list(mode_probability),
            1,
            1.0,
        )
        for i, score in enumerate(best_so_far)
    ]


class TestStopping:
    @pytest.mark.parametrize(
        ("stopper", "going", "ended"),
        [
            (TargetScore(0.8), history(0.5, 0.79), history(0.5, 0.8)),
            (Patience(2), history(0.5, 0.6, 0.6), history(0.5, 0.6, 0.6, 0.6)),
            (Patience(2), history(0.6, 0.5, 0.6), history(0.6, 0.5, 0.5, 0.5)),
            (Patience(1), history(0.5), history(0.5, 0.5)),
            (
                Converged(0.9),
                history(0.5, mode_probability=(0.95, 0.8)),
                history(0.5, mode_probability=(0.95, 0.9)),
            ),
        ],
    )
    def test_reads_the_rounds(self, stopper, going, ended):
        assert stopper([]) is None
        assert stopper(going) is None
        assert isinstance(stopper(ended), str)

    def test_ends_the_search(self):
        search = CrossEntropySearch(OrderingSpace.of_sizes(4), num_samples=10, seed=0)
        progress = run(search, SortedObjective(), num_iterations=50, stoppers=[Patience(9), TargetScore(1.0)])
        assert progress.stopped == "stop_at_score=1 reached"
        assert progress.best(search, 1)[0].score == 1.0
        assert all(iteration.best_score < 1.0 for iteration in progress.history[:-1])


def result(expected, probability=0.8, *, score=0.5):
    return Result(Finalist("best seen", ()), score, Gain(expected, probability))


def results(gains, probabilities=None):
    return [result(g, p) for g, p in zip(gains, probabilities or [0.8] * len(gains), strict=True)]


class TestFinals:
    def test_original_best_seen_mode_and_draws_each_once(self):
        space = OrderingSpace.of_sizes(5)
        search = CrossEntropySearch(space, seed=0)
        progress = run(search, SortedObjective(), num_iterations=3)
        entries = finalists(search, progress.best(search, 2), original=space.identity, num_draws=3)
        orderings = [entry.ordering for entry in entries]
        assert entries[0].origin == "original"
        assert orderings[0] == space.identity
        assert len(set(orderings)) == len(orderings) <= 7
        assert progress.best(search, 1)[0].ordering in orderings
        assert search.mode() in orderings

    @given(st.lists(st.integers(0, 4), max_size=20), st.integers(-3, 60))
    def test_as_many_examples_as_the_calls_left_pay_for(self, costs, left):
        def cost(examples):
            return sum(costs[example] for example in examples)

        kept = affordable_examples(range(len(costs)), cost, left)
        assert kept == sorted(set(kept))
        assert not kept or cost(kept) <= left
        dearer = [example for example in range(len(costs)) if example not in kept]
        assert all(cost([*kept, example]) > left for example in dearer)
        assert all(costs[example] >= costs[one] for example in dearer for one in kept)

    def test_the_original_order_comes_first_wherever_else_it_turns_up(self):
        space = OrderingSpace.of_sizes(3)
        search = CrossEntropySearch(space, seed=0)
        trials = [Trial(space.identity, 0.9, 1), Trial(((1, 0, 2),), 0.1, 1)]
        for _ in range(3):
            search.tell(trials[:1])  # the mode and the draws are the identity
        entries = finalists(search, trials, original=space.identity, num_draws=20)
        assert (entries[0].origin, entries[0].ordering) == ("original", space.identity)

    @given(st.lists(st.sampled_from([-0.1, 0.0, 0.2]), max_size=8))
    def test_the_best_on_new_examples_is_chosen_and_the_first_of_equals(self, expected):
        gains = [0.0, *expected]
        assert choose(results(gains)) == gains.index(max(gains))

    def test_what_scored_best_on_few_examples_is_not_what_is_expected_to(self):
        lucky, better = result(0.1, score=0.9), result(0.2, score=0.5)
        assert choose([result(0.0, score=0.6), lucky, better]) == 2

    @given(
        st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 1)), max_size=8), st.sampled_from([0.5, 0.9, 1.0])
    )
    def test_what_is_not_sure_enough_is_not_chosen(self, others, least):
        gains, probabilities = [0.0, *(g for g, _ in others)], [0.0, *(p for _, p in others)]
        chosen = choose(results(gains, probabilities), min_probability=least)
        assert not chosen or probabilities[chosen] >= least
        assert all(g <= gains[chosen] for g, p in zip(gains, probabilities, strict=True) if p >= least)

    def test_what_is_just_sure_enough_is_chosen(self):
        assert choose(results([0.0, 0.1], [0.0, 0.5])) == 1
        assert choose(results([0.0, 0.1], [0.0, 0.9]), min_probability=0.9) == 1

    def test_evidence_by_hand(self):
        """Example 0 tells nothing apart, 1 does, 2 and 3 were met once."""
        scores = {"a": {0: 1.0, 1: 1.0, 2: 0.0}, "b": {0: 1.0, 1: 0.0}, "c": {1: 0.0, 3: 1.0}}
        assert weigh(scores, "a", "b") == Evidence(num_met=2, num_differing=1, num_compared=2)
        assert weigh(scores, "a", "c") == Evidence(num_met=2, num_differing=1, num_compared=1)

    def test_comparison_is_paired(self):
        before, after = [0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]
        found = comparison(before, after, num_candidates=2, gain=Gain(0.1, 0.8))
        assert (found.original, found.chosen, found.gain) == (0.5, 0.75, 0.25)
        assert found.interval == paired_interval([1.0, 0.0, 0.0, 0.0])
        assert (found.expected_gain, found.probability) == (0.1, 0.8)

    def test_comparison_of_many_is_wider(self):
        before, after = [0.0, 1.0, 1.0, 0.0] * 5, [1.0, 1.0, 1.0, 0.0] * 5
        two, eight = (
            comparison(before, after, num_candidates=n, gain=Gain(0.1, 0.8)).interval for n in (2, 8)
        )
        assert eight[0] < two[0] < two[1] < eight[1]


class TestStatistics:
    def test_is_the_adjusted_wald_interval_of_paired_proportions(self):
        """Agresti and Min 2005: half an observation more in each cell of the 2 x 2 table."""
        better, worse, same = 12, 4, 24
        differences = [1.0] * better + [-1.0] * worse + [0.0] * same
        n, b, c = better + worse + same + 2, better + 0.5, worse + 0.5
        error = math.sqrt((b + c - (b - c) ** 2 / n) / n**2)
        quantile = stats.t.ppf(0.975, n - 1)
        expected = ((b - c) / n - quantile * error, (b - c) / n + quantile * error)
        assert paired_interval(differences) == pytest.approx(expected)

    def test_covers_the_mean_at_its_level(self):
        generator = torch.Generator().manual_seed(0)
        samples = torch.randn(2000, 25, generator=generator, dtype=torch.float64) + 0.3
        hits = [low <= 0.3 <= high for low, high in (paired_interval(row.tolist(), 0.9) for row in samples)]
        assert 0.89 < sum(hits) / len(hits) < 0.95

    def test_the_winner_of_noise_seldom_looks_better(self):
        """Eight orders that are all alike: the chosen one's interval lies above 0 in about 2.5 % of the cases."""
        generator = torch.Generator().manual_seed(0)
        above = 0
        for _ in range(1000):
            scores = (torch.rand(8, 40, generator=generator) < 0.6).double()
            best = int(scores.mean(dim=1).argmax())
            rows, gain = scores.tolist(), Gain(0.0, 0.5)
            interval = comparison(rows[0], rows[best], num_candidates=8, gain=gain).interval
            above += interval[0] > 0
        assert above / 1000 <= 0.04

    def test_interval_of_a_mean_is_students(self):
        values = [0.17, 0.215, 0.07, 0.175, 0.145]
        expected = stats.t.interval(0.95, 4, loc=statistics.mean(values), scale=stats.sem(values))
        assert mean_interval(values) == pytest.approx(expected)
        with pytest.raises(ValueError, match="at least two"):
            mean_interval([0.1])

    def test_few_examples_that_agree_prove_nothing(self):
        assert paired_interval([1.0, 1.0, 1.0])[0] < 0
        assert paired_interval([0.5])[0] < 0

    def test_no_difference_and_none(self):
        assert paired_interval([0.0, 0.0]) == (0.0, 0.0)
        with pytest.raises(ValueError, match="at least one"):
            paired_interval([])


@given(st.integers(1, 500), st.sampled_from([0.1, 0.2, 0.3, 0.5, 1.0]))
def test_number_of_elites_is_the_ceiling(num_trials, fraction):
    exact = math.ceil(round(fraction * num_trials, 6))
    assert num_elites(num_trials, fraction) == max(1, exact)


def test_weights_have_mean_one_and_need_positive_scores():
    weights = elite_weights([Trial(((0,),), 0.2, 1), Trial(((0,),), 0.6, 1)])
    torch.testing.assert_close(weights, torch.tensor([0.5, 1.5], dtype=torch.float64))
    assert elite_weights([Trial(((0,),), 0.0, 1), Trial(((0,),), 0.6, 1)]) is None

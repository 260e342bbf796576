"""Thompson sampling: the orderings that the search requests, and its estimates."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from worlds import World, play, random_orderings

from plr_dspy import OrderingSpace, ThompsonSearch
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import WholeProgram


def search_in(world, **options):
    sizes = {"num_samples": 8, "num_initial": 16, "num_examples": len(world.easiness)}
    return ThompsonSearch(world.space, **{**sizes, **options})


def asked_in(batches):
    return list(itertools.chain.from_iterable(batches))


@pytest.fixture(scope="module")
def games():
    """Return simulated worlds, each with a finished search and its batches."""
    played = []
    for seed in range(6):
        world = World(8, seed=seed)
        search = search_in(world, seed=seed, num_samples=16, num_initial=30)
        played.append((world, search, play(search, world)))
    return played


class TestSearch:
    def test_finds_better_orders_than_random_search_with_as_many_calls(self, games):
        gains = []
        heights = []
        for seed, (world, search, _) in enumerate(games):
            best = search.ranked(world.known)[0].ordering
            rest = World(8, seed=seed)
            scores = rest(random_orderings(world.space, world.calls // 8, seed))
            means = {o: np.mean(list(row.values())) for o, row in scores.items()}
            at_random = max(means, key=means.get)
            gains.append(world.truth(best) - world.truth(at_random))
            heights.append(world.height(best))
            assert world.calls < 1_200
        assert np.mean(gains) > 0.5
        assert np.mean(heights) > 2.0

    def test_batches_start_with_the_identity_and_repeat_good_orderings(self, games):
        gains = []
        for world, _, batches in games:
            asked = asked_in(batches)
            again = [world.truth(o) for o in asked if asked.count(o) > 1]
            once = [world.truth(o) for o in asked if asked.count(o) == 1]
            gains.append(np.mean(again) - np.mean(once))
        assert np.mean(gains) > 0.5
        for world, _, batches in games:
            assert batches[0][0] == world.space.identity
            assert len(batches[0]) == 30
            assert all(0 < len(set(batch)) == len(batch) <= 16 for batch in batches[1:])

    def test_finds_good_orders_of_several_blocks(self):
        heights = []
        for seed in range(4):
            world = World(5, 4, 1, seed=seed)
            search = search_in(world)
            asked = asked_in(play(search, world))
            assert [world.space.canonical(ordering) for ordering in asked] == asked
            heights.append(world.height(search.ranked(world.known)[0].ordering))
        assert np.mean(heights) > 1.8

    def test_ends_when_all_orderings_are_scored_on_all_examples(self):
        world = World(3, num_examples=30)
        batches = play(search_in(world, num_samples=4, num_initial=3), world, rounds=50)
        assert batches[-1] == []
        assert (len(world.known), world.calls) == (6, 6 * 30)
        assert len(asked_in(batches)) == 6 * 3, (
            "an ordering must not be requested again after all its scores are known"
        )

    def test_ends_if_an_example_cannot_be_scored(self):
        """The last example never receives a score."""
        world = World(3, seed=0)
        search = search_in(world, num_examples=len(world.easiness) + 1)
        batches = play(search, world, rounds=100)
        assert batches[-1] == []
        assert len(batches) < 20

    def test_an_unfinished_whole_program_has_its_own_draw_if_there_are_log_probabilities(self):
        program = WholeProgram(0, "nearest last")
        first = []
        space = OrderingSpace((tuple(range(3)),), programs=(program,))
        silent = LabelResponses(np.eye(4, 2), lambda *cell: None)
        cases = [(4, 1.0, silent), (3, 0.0, silent), (3, 0.0, None)]
        for num_scored, score, responses in cases:
            known = {space.identity: dict.fromkeys(range(4), 1.0)}
            known[program] = dict.fromkeys(range(num_scored), score)
            search = ThompsonSearch(space, num_examples=4, responses=responses)
            search.tell([*known, ((2, 1, 0),)], known | {((2, 1, 0),): {0: 0.0}})
            asked = search.ask()
            first.append(asked[0] == program)
            whole = {ordering for ordering, row in known.items() if len(row) == 4}
            assert set(asked) == set(space.enumerate()) - whole
        assert first == [False, True, False]

    def test_classes_affect_the_search(self):
        options = [{}, {"classes": [[0, 1] * 4]}, {"example_classes": [0, 1] * 20}]
        last = [play(search_in(World(8), **some), World(8), rounds=3)[-1] for some in options]
        assert all(one != other for one, other in itertools.combinations(last, 2))


class TestTell:
    def test_returns_the_elites_with_estimates_best_first(self):
        world = World(8)
        search = search_in(world, num_initial=60)
        orderings = search.ask()
        scores = world(orderings)
        elites = search.tell(orderings, scores)
        assert elites == search.ranked(scores)[:8]
        means = [np.mean(list(row.values())) for row in scores.values()]
        assert 0 < np.std([estimate.score for estimate in search.ranked(scores)]) < np.std(means)

    def test_ranked_estimates_exactly_the_orderings_with_known_scores(self, games):
        for world, search, _ in games:
            unknown = next(o for o in random_orderings(world.space, 999) if o not in world.known)
            estimates = search.ranked({unknown: {0: 9.0}, **world.known})
            scores = [estimate.score for estimate in estimates]
            assert scores == sorted(scores, reverse=True)
            assert {estimate.ordering for estimate in estimates} == world.known.keys()
            truths = [world.truth(estimate.ordering) for estimate in estimates]
            assert np.corrcoef(truths, scores)[0, 1] > 0.5

    def test_a_limit_may_end_the_first_round_before_any_ordering_is_scored(self):
        program = WholeProgram(0, "theirs")
        space = replace(OrderingSpace.of_sizes(6, max_length=3, identity=((),)), programs=(program,))
        search = ThompsonSearch(space, num_examples=10)
        scores = {program: {0: 1.0, 1: 0.0}}
        assert search.tell([program], scores) == []
        assert search.ranked(scores)[0].ordering == program
        assert space.allows(search.mode())

    def test_the_model_is_fitted_to_all_candidates(self):
        program = WholeProgram(0, "nearest last")
        space = OrderingSpace((tuple(range(6)),), programs=(program,))
        orderings = list(space.enumerate())[:300]
        scores = {ordering: dict.fromkeys(range(4), 1.0) for ordering in orderings}
        scores |= {candidate: {0: 0.0} for candidate in (*orderings[:2], program)}
        search = ThompsonSearch(space, num_examples=8)
        search.tell(orderings, scores)
        assert {estimate.ordering for estimate in search.ranked(scores)} == scores.keys()

    @pytest.mark.parametrize(
        ("scores", "message"),
        [
            ({((0, 1, 2),): {}}, "keyed by example"),
            ({((0, 1, 2),): {0: float("nan")}}, "dict of finite scores"),
            ({((0, 1, 2),): {0: 1.0, 1: float("inf")}}, "dict of finite scores"),
            ({((0, 1, 1),): {0: 0.5}}, "permutation"),
            ({((0, 1, 2), (0,)): {0: 0.5}}, "per block"),
        ],
    )
    def test_rejects_invalid_scores_and_does_not_learn_from_them(self, scores, message):
        search, twin = (search_in(World(3), example_classes=[0] * 41) for _ in range(2))
        scores = {((2, 1, 0),): {0: 0.5}, **scores}
        wrong = [(list(scores), message), ([], "at least one"), ([((1, 0, 2),)], "keyed by example")]
        for orderings, reason in wrong:
            with pytest.raises(ValueError, match=reason):
                search.tell(orderings, scores)
        assert search.ask() == twin.ask()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_examples", value) for value in (0, 2.5, True)),
        *(("num_initial", 0), ("seed", -1), ("example_classes", [0, 1])),
    ],
)
def test_errors_name_arguments_out_of_range(name, value):
    with pytest.raises(ValueError, match=name):
        search_in(World(3), **{name: value})


@pytest.mark.parametrize(("wrong", "right"), [(0.0, 1.0), (-70.0, -20.0), (0.0, 1e-3)])
def test_estimates_lie_within_the_range_of_scores(wrong, right):
    """Estimates are clipped, because the linear model may predict scores outside the range."""
    beyond = False
    for seed in range(2):
        world = World(6, seed=seed)

        def score(ordering, example, world=world):
            is_right = world.truth(ordering) + 1 > world.easiness[example]
            return right if is_right else wrong

        world._score = score
        search = search_in(world, seed=seed)
        for _ in range(6):
            asked = search.ask()
            elites = search.tell(asked, world(asked))
            scores = [estimate.score for estimate in search.ranked(world.known)]
            shown = [*scores[:1], *(elite.score for elite in elites)]
            assert wrong <= min(shown)
            assert max(shown) <= right
            assert scores == sorted(scores, reverse=True)
        beyond |= search.model.fit(world.known).estimates()[0].score > right
    assert beyond, "the model must predict a score above the range, or the test proves nothing"

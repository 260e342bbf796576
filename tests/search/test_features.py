from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy import OrderingSpace
from plr_dspy.search.surrogate.features import FAMILIES, OrderingFeatures

CLASSES = (0, 1, 0, 1, 2, 0, 2)


def orderings(space, count, seed=0):
    rng = np.random.default_rng(seed)
    return [space.canonical([rng.permutation(size).tolist() for size in space.sizes]) for _ in range(count)]


def nearness(first, second, size):
    return np.exp(-0.5 * ((first - second) / (size / 4)) ** 2)


def both(one, other):
    return [(x, y) for x in one for y in other]


KERNELS = {
    "position": lambda a, b: sum(x == y for x, y in zip(a, b, strict=True)),
    "region": lambda a, b: sum(nearness(a.index(i), b.index(i), len(a)) for i in a),
    "rank": lambda a, b: sum(a.index(i) * b.index(i) for i in a),
    "last": lambda a, b: float(a[-1] == b[-1]),
    "adjacency": lambda a, b: len(set(pairwise(a)) & set(pairwise(b))),
    "class region": lambda a, b: sum(
        nearness(p, q, len(a))
        for p, q in both(range(len(a)), range(len(b)))
        if CLASSES[a[p]] == CLASSES[b[q]]
    ),
    "class adjacency": lambda a, b: sum(
        x == y for x, y in both(*(list(pairwise([CLASSES[i] for i in order])) for order in (a, b)))
    ),
}
"""What two orders of one block have in common, straight from the meaning of each family."""


def common(family, some):
    """The kernel of a family summed over blocks, `[m, m]`."""
    kernel = KERNELS[family]
    return np.array([[sum(map(kernel, a, b)) for b in some] for a in some], dtype=float)


def shape(gram):
    """A Gram matrix whatever was added to the features, and whatever they were multiplied by."""
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    return centred / np.trace(centred)


class TestFamilies:
    def test_all_have_a_kernel_here(self):
        assert set(KERNELS) == set(FAMILIES)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_is_what_its_kernel_says(self, family):
        space = OrderingSpace.of_sizes(7)
        some = orderings(space, 25)
        (features,) = OrderingFeatures(space, classes=[CLASSES], families=[family])(some)
        np.testing.assert_allclose(shape(features @ features.T), shape(common(family, some)), atol=1e-6)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_blocks_add_up(self, family):
        space = OrderingSpace.of_sizes(7, 5)
        some = orderings(space, 20)
        (features,) = OrderingFeatures(space, classes=[CLASSES, CLASSES[:5]], families=[family])(some)
        np.testing.assert_allclose(shape(features @ features.T), shape(common(family, some)), atol=1e-6)

    @pytest.mark.parametrize("space", [OrderingSpace.of_sizes(7), OrderingSpace.of_sizes(7, 4, 1)])
    def test_mean_zero_and_mean_squared_length_one(self, space):
        classes = [CLASSES[:size] for size in space.sizes]
        features = OrderingFeatures(space, classes=classes)
        assert features.names == list(FAMILIES)
        for values in features(orderings(space, 1_500, seed=1)):
            assert (values.mean(axis=0) ** 2).sum() < 0.02
            assert (values**2).sum(axis=1).mean() == pytest.approx(1.0, abs=0.1)

    def test_a_table_row_depends_on_its_ordering_alone(self):
        space = OrderingSpace.of_sizes(6)
        features, some = OrderingFeatures(space), orderings(space, 5)
        together = features(some)
        for row, ordering in enumerate(some):
            for whole, alone in zip(together, features([ordering]), strict=True):
                np.testing.assert_array_equal(whole[row], alone[0])

    @settings(deadline=None, max_examples=20)
    @given(st.permutations(FAMILIES), st.integers(1, len(FAMILIES)))
    def test_any_choice_in_any_order(self, families, count):
        space = OrderingSpace.of_sizes(7)
        chosen, some = families[:count], orderings(space, 3)
        features = OrderingFeatures(space, classes=[CLASSES], families=chosen)
        assert features.names == list(chosen)
        everything = OrderingFeatures(space, classes=[CLASSES])
        known = dict(zip(everything.names, everything(some), strict=True))
        for name, values in zip(features.names, features(some), strict=True):
            np.testing.assert_array_equal(values, known[name])


class TestSpaces:
    def test_a_block_of_one_item_changes_nothing(self):
        spaces = OrderingSpace.of_sizes(6), OrderingSpace.of_sizes(1, 6)
        some = orderings(spaces[0], 20)
        alone = OrderingFeatures(spaces[0])(some)
        beside = OrderingFeatures(spaces[1])([((0,), *ordering) for ordering in some])
        for one, other in zip(alone, beside, strict=True):
            np.testing.assert_allclose(shape(one @ one.T), shape(other @ other.T), atol=1e-9)

    def test_two_items_have_two_orders(self):
        features = OrderingFeatures(OrderingSpace.of_sizes(2))
        assert features.names == ["position", "region", "rank", "last", "adjacency"]
        for values in features([((0, 1),), ((1, 0),)]):
            assert ((values[0] - values[1]) ** 2).sum() == pytest.approx(4.0, rel=0.05)

    def test_nothing_to_order(self):
        features = OrderingFeatures(OrderingSpace.of_sizes(1, 1))
        assert all(np.isfinite(values).all() for values in features([((0,), (0,))]))

    @pytest.mark.parametrize("classes", [range(6), [3] * 6, [0, 1, 2, 3, 4, 4]])
    def test_classes_that_say_little_are_left_out(self, classes):
        features = OrderingFeatures(OrderingSpace.of_sizes(6), classes=[list(classes)])
        assert features.names == ["position", "region", "rank", "last", "adjacency"]

    def test_classes_of_one_block_are_enough(self):
        space = OrderingSpace.of_sizes(7, 4)
        features = OrderingFeatures(space, classes=[CLASSES, range(4)], families=["class region"])
        first, *others = orderings(space, 6)
        assert features.names == ["class region"]
        moved = [(first[0], other[1]) for other in others]
        for values in features([first, *moved])[0]:
            np.testing.assert_array_equal(values, features([first])[0][0])

    def test_what_classes_are_called_does_not_matter(self):
        space = OrderingSpace.of_sizes(7)
        renamed = [[-5, 40, 7][c] for c in CLASSES]
        families, some = ["class region", "class adjacency"], orderings(space, 15)
        tables = [OrderingFeatures(space, classes=[c], families=families)(some) for c in (CLASSES, renamed)]
        for one, other in zip(*tables, strict=True):
            np.testing.assert_allclose(one @ one.T, other @ other.T, atol=1e-9)

    def test_large_blocks_go_without_pairs_of_items(self):
        space = OrderingSpace.of_sizes(200)
        features = OrderingFeatures(space, classes=[[i % 2 for i in range(200)]])
        assert features.names == ["region", "rank", "last", "class region", "class adjacency"]
        assert all(np.isfinite(values).all() for values in features(orderings(space, 3)))

    def test_a_large_block_beside_a_small_one(self):
        space = OrderingSpace.of_sizes(200, 3)
        features = OrderingFeatures(space, families=["position"])
        (values,) = features(orderings(space, 3))
        assert values.shape == (3, 9)

    def test_items_that_look_alike(self):
        space = OrderingSpace(((0, 0, 0, 0),))
        for values in OrderingFeatures(space, classes=[(0, 0, 1, 1)])([space.identity] * 2):
            np.testing.assert_allclose(values, 0.0, atol=1e-6)

    def test_some_items_that_look_alike(self):
        space = OrderingSpace(((0, 0, 1, 2, 2),))
        for values in OrderingFeatures(space)(orderings(space, 800, seed=2)):
            assert (values**2).sum(axis=1).mean() == pytest.approx(1.0, abs=0.1)


class TestErrors:
    def test_unknown_families(self):
        with pytest.raises(ValueError, match=r"families must be of .* got \['size'\]"):
            OrderingFeatures(OrderingSpace.of_sizes(4), families=["rank", "size"])

    @pytest.mark.parametrize("classes", [[], [[0, 1, 0]], [[0, 1, 0, 1], [0]], [[0, 1, 0, 1, 1]]])
    def test_classes_of_another_space(self, classes):
        with pytest.raises(ValueError, match="a class for each item"):
            OrderingFeatures(OrderingSpace.of_sizes(4), classes=classes)


@pytest.mark.parametrize(
    ("size", "families"), [(5, []), (5, ["class region"]), (200, ["position", "adjacency"])]
)
def test_families_that_say_nothing_are_refused(size, families):
    with pytest.raises(ValueError, match="none of the families"):
        OrderingFeatures(OrderingSpace.of_sizes(size), families=families)


def test_many_classes_have_too_many_pairs():
    classes = [[i % 160 for i in range(240)]]
    names = OrderingFeatures(OrderingSpace.of_sizes(240), classes=classes).names
    assert "class adjacency" not in names
    assert "class region" in names

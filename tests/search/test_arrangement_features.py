from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plr_dspy.search.space import OrderingSpace
from plr_dspy.search.surrogate.arrangement_features import FAMILIES, ArrangementFeatures

CLASSES = (0, 1, 0, 1, 2, 0, 2)
ITEM_FAMILIES = ["number", "presence", "region", "last", "adjacency"]


def drawn(space, count, seed=0):
    return space.draw(count, np.random.default_rng(seed))


def classes_of(items):
    return [CLASSES[item] for item in items]


def shares(items):
    return np.array([classes_of(items).count(c) / max(1, len(items)) for c in range(3)])


def both(one, other):
    return [(x, y) for x in one for y in other]


def nearness(p, q):
    """Of two places counted from 1 at the end."""
    return np.exp(-0.5 * np.log(p / q) ** 2)


def from_end(items):
    return list(enumerate(reversed(items), start=1))


KERNELS = {
    "number": lambda a, b, most: np.exp(-0.5 * ((len(a) - len(b)) / most / 0.25) ** 2),
    "presence": lambda a, b, _: len(set(a) & set(b)),
    "region": lambda a, b, _: sum(
        nearness(p, q) for (p, x), (q, y) in both(from_end(a), from_end(b)) if x == y
    ),
    "last": lambda a, b, _: float(bool(a and b) and a[-1] == b[-1]),
    "adjacency": lambda a, b, _: len(set(pairwise(a)) & set(pairwise(b))),
    "class share": lambda a, b, _: shares(a) @ shares(b),
    "class region": lambda a, b, _: sum(
        nearness(p, q) for (p, x), (q, y) in both(from_end(a), from_end(b)) if CLASSES[x] == CLASSES[y]
    ),
    "class last": lambda a, b, _: sum(
        bool(a and b) and min(len(a), len(b)) >= count and classes_of(a)[-count:] == classes_of(b)[-count:]
        for count in (1, 2)
    ),
    "class adjacency": lambda a, b, _: sum(
        x == y for x, y in both(*(list(pairwise(classes_of(items))) for items in (a, b)))
    ),
}
"""What two arrangements of one pool have in common, straight from the meaning of each family."""


def common(family, space, some):
    """The kernel of a family summed over pools, `[m, m]`."""
    most = [largest for _, largest in space.limits]
    return np.array([[sum(map(KERNELS[family], a, b, most)) for b in some] for a in some], dtype=float)


def shape(gram):
    """A Gram matrix whatever was added to the features, and whatever they were multiplied by."""
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    return centred / np.trace(centred)


class TestFamilies:
    def test_all_have_a_kernel_here(self):
        assert set(KERNELS) == set(FAMILIES)

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("sizes", [(7,), (7, 5)])
    def test_is_what_its_kernel_says(self, family, sizes):
        space = OrderingSpace.of_sizes(*sizes, max_length=5)
        some = drawn(space, 25)
        classes = [CLASSES[:size] for size in sizes]
        (features,) = ArrangementFeatures(space, classes=classes, families=[family])(some)
        # The smooth bases leave out directions with less than a millionth of the variance.
        np.testing.assert_allclose(
            shape(features @ features.T), shape(common(family, space, some)), atol=1e-5
        )

    @pytest.mark.parametrize(
        "space", [OrderingSpace.of_sizes(7, max_length=4), OrderingSpace.of_sizes(7, 4, 1, min_length=0)]
    )
    def test_mean_zero_and_mean_squared_length_one(self, space):
        features = ArrangementFeatures(space, classes=[CLASSES[:size] for size in space.sizes])
        assert features.names == list(FAMILIES)
        for values in features(drawn(space, 1_500, seed=1)):
            assert (values.mean(axis=0) ** 2).sum() < 0.02
            assert (values**2).sum(axis=1).mean() == pytest.approx(1.0, abs=0.12)

    def test_a_table_row_depends_on_its_arrangement_alone(self):
        space = OrderingSpace.of_sizes(6, min_length=0)
        features, some = ArrangementFeatures(space), drawn(space, 5)
        together = features(some)
        for row, arrangement in enumerate(some):
            for whole, alone in zip(together, features([arrangement]), strict=True):
                np.testing.assert_allclose(whole[row], alone[0], atol=1e-12)

    @settings(max_examples=20)
    @given(st.permutations(FAMILIES), st.integers(1, len(FAMILIES)))
    def test_any_choice_in_any_order(self, families, count):
        space = OrderingSpace.of_sizes(7, max_length=4)
        chosen, some = families[:count], drawn(space, 3)
        features = ArrangementFeatures(space, classes=[CLASSES], families=chosen)
        assert features.names == list(chosen)
        everything = ArrangementFeatures(space, classes=[CLASSES])
        known = dict(zip(everything.names, everything(some), strict=True))
        for name, values in zip(features.names, features(some), strict=True):
            np.testing.assert_array_equal(values, known[name])

    def test_items_put_before_all_others_change_no_place(self):
        space = OrderingSpace.of_sizes(7, max_length=4)
        short, long = ((2, 5, 3),), ((6, 2, 5, 3),)
        raw = dict(zip(FAMILIES, ArrangementFeatures(space, classes=[CLASSES])([short, long]), strict=True))
        for name in ("last", "class last"):
            np.testing.assert_array_equal(*raw[name])
        changed = raw["region"].reshape(2, 7, -1)[1] - raw["region"].reshape(2, 7, -1)[0]
        assert set(np.flatnonzero(np.abs(changed).max(axis=1) > 1e-9)) == {6}


class TestSpaces:
    def test_a_fixed_number_of_items_is_no_family(self):
        fixed = OrderingSpace.of_sizes(6, min_length=3, max_length=3)
        assert ArrangementFeatures(fixed).names == ["presence", "region", "last", "adjacency"]
        whole = OrderingSpace.of_sizes(6, min_length=6)
        assert ArrangementFeatures(whole).names == ["region", "last", "adjacency"]

    def test_nothing_to_arrange(self):
        for space in (
            OrderingSpace.of_sizes(4, max_length=0),
            OrderingSpace.of_sizes(1, 0, min_length=0, max_length=0),
        ):
            with pytest.raises(ValueError, match="none of the families"):
                ArrangementFeatures(space)

    def test_a_pool_that_shows_nothing_changes_nothing(self):
        one = OrderingSpace.of_sizes(5, max_length=3)
        beside = OrderingSpace((tuple(range(5)), tuple(range(4))), ((0, 3), (0, 0)), ((0, 1), ()))
        some = drawn(one, 20)
        tables = ArrangementFeatures(one)(some), ArrangementFeatures(beside)([(a[0], ()) for a in some])
        for alone, both_pools in zip(*tables, strict=True):
            np.testing.assert_allclose(shape(alone @ alone.T), shape(both_pools @ both_pools.T), atol=1e-9)

    def test_only_whether_an_item_is_shown(self):
        features = ArrangementFeatures(OrderingSpace.of_sizes(1, min_length=0))
        assert features.names == ["number", "presence", "region", "last"]
        for values in features([((),), ((0,),)]):
            assert ((values[0] - values[1]) ** 2).sum() == pytest.approx(4.0, rel=0.05)

    @pytest.mark.parametrize("classes", [range(6), [3] * 6, [0, 1, 2, 3, 4, 4]])
    def test_classes_that_say_little_are_left_out(self, classes):
        features = ArrangementFeatures(OrderingSpace.of_sizes(6, min_length=0), classes=[list(classes)])
        assert features.names == ITEM_FAMILIES

    def test_what_classes_are_called_does_not_matter(self):
        space = OrderingSpace.of_sizes(7, max_length=4)
        renamed = [[-5, 40, 7][c] for c in CLASSES]
        families, some = [name for name in FAMILIES if "class" in name], drawn(space, 15)
        tables = [
            ArrangementFeatures(space, classes=[c], families=families)(some) for c in (CLASSES, renamed)
        ]
        for one, other in zip(*tables, strict=True):
            np.testing.assert_allclose(one @ one.T, other @ other.T, atol=1e-9)

    def test_large_pools_go_without_pairs_of_items(self):
        space = OrderingSpace.of_sizes(200, max_length=8)
        features = ArrangementFeatures(space, classes=[[i % 2 for i in range(200)]])
        assert features.names == [name for name in FAMILIES if name != "adjacency"]


class TestErrors:
    def test_unknown_families(self):
        with pytest.raises(ValueError, match=r"families must be of .* got \['size'\]"):
            ArrangementFeatures(OrderingSpace.of_sizes(4, min_length=0), families=["presence", "size"])

    @pytest.mark.parametrize("classes", [[], [[0, 1, 0]], [[0, 1, 0, 1], [0]]])
    def test_classes_of_another_space(self, classes):
        with pytest.raises(ValueError, match="a class for each item"):
            ArrangementFeatures(OrderingSpace.of_sizes(4, min_length=0), classes=classes)

    @pytest.mark.parametrize("families", [[], ["class share"]])
    def test_families_that_say_nothing(self, families):
        with pytest.raises(ValueError, match="none of the families"):
            ArrangementFeatures(OrderingSpace.of_sizes(4, min_length=0), families=families)

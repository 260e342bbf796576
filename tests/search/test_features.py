"""Features of orderings, compared with the definition of each family."""

import itertools
from itertools import pairwise

import numpy as np
import pytest

from plr_dspy import OrderingSpace
from plr_dspy.search.model.features import CHOICE_FAMILIES, FAMILIES, Features

CLASSES = (0, 1, 0, 1, 2, 0, 2)
OF_ALL_ITEMS = ["region", "last", "adjacency"]
ARRANGED = OrderingSpace.of_sizes(7, max_length=4)


def drawn(space, count, seed=0):
    return space.draw(count, np.random.default_rng(seed))


def classes_of(items):
    return [CLASSES[item] for item in items]


def nearness(p, q):
    return np.exp(-0.5 * np.log(p / q) ** 2)


def near(a, b):
    """Return the summed nearness of equal items, with positions counted from the end."""
    total = 0.0
    for p, x in enumerate(reversed(a), start=1):
        for q, y in enumerate(reversed(b), start=1):
            if x == y:
                total += nearness(p, q)
    return total


def number_of_equal_pairs(a, b):
    pairs = itertools.product(pairwise(a), pairwise(b))
    return sum(first == second for first, second in pairs)


KERNELS = {
    "number": lambda a, b, most: np.exp(-0.5 * ((len(a) - len(b)) / most / 0.25) ** 2),
    "presence": lambda a, b, _: len(set(a) & set(b)),
    "region": lambda a, b, _: near(a, b),
    "last": lambda a, b, _: float(bool(a and b) and a[-1] == b[-1]),
    "adjacency": lambda a, b, _: len(set(pairwise(a)) & set(pairwise(b))),
    "class region": lambda a, b, _: near(classes_of(a), classes_of(b)),
    "class adjacency": lambda a, b, _: number_of_equal_pairs(classes_of(a), classes_of(b)),
}
"""For each family, its definition of the similarity between two orderings of one block."""


def common(family, space, some):
    most = [largest for _, largest in space.limits]
    gram = np.empty((len(some), len(some)))
    for i, first in enumerate(some):
        for j, second in enumerate(some):
            gram[i, j] = sum(map(KERNELS[family], first, second, most))
    return gram


def shape(gram):
    """Return a Gram matrix that does not depend on the offset and scale of features."""
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    return centred / np.trace(centred)


@pytest.mark.parametrize(
    ("space", "names"),
    [
        (ARRANGED, FAMILIES),
        (OrderingSpace.of_sizes(7, 5, max_length=5), FAMILIES),
        (OrderingSpace.of_sizes(7), FAMILIES[2:]),
        (OrderingSpace.of_sizes(7, 5), FAMILIES[2:]),
    ],
)
def test_inner_products_match_the_kernels_and_families_have_equal_norm(space, names):
    features = Features(space, classes=[CLASSES[:size] for size in space.sizes])
    some = drawn(space, 25)
    assert features.names == list(names)
    assert set(KERNELS) == set(FAMILIES)
    for name, values in zip(names, features(some), strict=True):
        # Allow small errors, because `_smooth` omits directions with tiny variances.
        np.testing.assert_allclose(shape(values @ values.T), shape(common(name, space, some)), atol=1e-5)
    for values in features(drawn(space, 1_500, seed=1)):
        assert (values.mean(axis=0) ** 2).sum() < 0.02
        assert (values**2).sum(axis=1).mean() == pytest.approx(1.0, abs=0.12)
    for whole, alone in zip(features(some), features(some[3:4]), strict=True):
        np.testing.assert_allclose(whole[3], alone[0], atol=1e-12)


@pytest.mark.parametrize(
    ("space", "classes", "names"),
    [
        (OrderingSpace.of_sizes(2), None, OF_ALL_ITEMS),
        (OrderingSpace.of_sizes(1, 6), None, OF_ALL_ITEMS),
        (OrderingSpace.of_sizes(6, min_length=6), None, OF_ALL_ITEMS),
        (OrderingSpace.of_sizes(6, min_length=3, max_length=3), None, ["presence", *OF_ALL_ITEMS]),
        (OrderingSpace.of_sizes(1, min_length=0), None, ["number", "presence", "region", "last"]),
        (OrderingSpace.of_sizes(1, 1), None, []),
        (OrderingSpace.of_sizes(4, max_length=0), None, []),
        (OrderingSpace.of_sizes(6), [range(6)], OF_ALL_ITEMS),
        (OrderingSpace.of_sizes(6), [[3] * 6], OF_ALL_ITEMS),
        (OrderingSpace.of_sizes(6), [[0, 1, 2, 3, 4, 4]], OF_ALL_ITEMS),
        (OrderingSpace.of_sizes(7, 4), [CLASSES, range(4)], FAMILIES[2:]),
        (OrderingSpace.of_sizes(6), [[0, 1, 2, 3, 3, 2]], FAMILIES[2:]),
        (OrderingSpace.of_sizes(38), None, OF_ALL_ITEMS),
        (OrderingSpace.of_sizes(39), None, ["region", "last"]),
        (OrderingSpace.of_sizes(28, 28), None, ["region", "last"]),
        (OrderingSpace.of_sizes(39, 3), None, OF_ALL_ITEMS),
    ],
)
def test_families_without_information_and_large_families_are_omitted(space, classes, names):
    features = Features(space, classes=classes)
    assert features.names == list(names)
    assert all(np.isfinite(values).all() for values in features(drawn(space, 3)))


@pytest.mark.parametrize("classes", [[], [[0, 1, 0]], [[0, 1, 0, 1], [0]], [[0, 1, 0, 1, 1]]])
def test_rejects_classes_that_do_not_fit_the_space(classes):
    with pytest.raises(ValueError, match="a class for each item"):
        Features(OrderingSpace.of_sizes(4), classes=classes)


def test_a_choice_has_a_main_effect_and_interacts_with_the_number_of_items():
    kinds = (tuple(range(5)), tuple(range(3)), tuple(range(2)))
    space = OrderingSpace(kinds, ((0, 3), (1, 1), (1, 1)), ((), (0,), (0,)), choices=(0, None))
    features = Features(space)
    assert features.names == [*FAMILIES[:5], *CHOICE_FAMILIES]
    by_name = dict(
        zip(
            features.names,
            features([((), (0,), (0,)), ((), (2,), (0,)), ((1, 3), (2,), (0,))]),
            strict=True,
        )
    )
    demos = Features(OrderingSpace.of_sizes(5, max_length=3))
    for name, values in zip(demos.names, demos([((),), ((),), ((1, 3),)]), strict=True):
        np.testing.assert_allclose(by_name[name][0], by_name[name][1])
        assert values.shape == by_name[name].shape
    for name in ("choice", "choice and none", "choice and number"):
        assert np.abs(by_name[name][0] - by_name[name][1]).max() > 0.1
    np.testing.assert_allclose(by_name["choice"][1], by_name["choice"][2])
    assert by_name["none"][0] == by_name["none"][1] != by_name["none"][2]

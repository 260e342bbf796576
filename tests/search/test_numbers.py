"""What the model says of fixed scores, number by number: no change of the arithmetic may move it unseen.

After a change that is meant to, `python tests/search/test_numbers.py` writes the numbers anew.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from plr_dspy import OrderingSpace
from plr_dspy.compilation.choice import calibration_effect
from plr_dspy.search.model.ordering_model import OrderingModel
from plr_dspy.search.model.responses import LabelResponses
from plr_dspy.search.space import WITHOUT_DEMOS
from plr_dspy.statistics.calibration import shares_to_try

NUMBERS = Path(__file__).parent / "numbers.json"
ORDERS = OrderingSpace.of_sizes(6)
ARRANGED = OrderingSpace.of_sizes(9, max_length=4, identity=((),))
CASES = {
    "orders": {},
    "many orders": {"count": 300},
    "classes of examples": {"classes": True},
    "arrangements": {"space": ARRANGED, "classes": True},
    "log-probabilities": {"told": 0.9},
    "calibrated": {"told": 0.9, "num_labels": 3, "calibrating": True},
    "calibrated arrangements": {"told": 1.0, "calibrating": True, "space": ARRANGED},
}


def numbers_of(*, space=ORDERS, count=40, classes=False, told=0.0, num_labels=2, calibrating=False):
    """Two fits of one model, the second from the first one's variances; orderings lean by where their items stand."""
    rng = np.random.default_rng(7)
    gold = rng.integers(num_labels, size=24) if num_labels > 2 else (np.arange(24) % 5 == 0).astype(int)
    own = rng.normal(size=(24, num_labels)) + np.eye(num_labels)[gold]
    leanings = 0.5 * rng.normal(size=(space.sizes[0], space.sizes[0], num_labels))
    drawn = dict.fromkeys([space.identity, *(o for o in space.draw(4 * count, rng) if any(o))])
    orderings = [*list(drawn)[:count], WITHOUT_DEMOS]
    scores = {}
    logs = {}
    for i, ordering in enumerate(orderings):
        z = own + leanings[list(ordering[0][::-1]), range(len(ordering[0]))].sum(axis=0)
        z = z + 0.3 * rng.normal(size=z.shape)
        examples = np.roll(np.arange(24), -3 * i)[: 4 + i % 9].tolist()
        scores[ordering] = {e: float(z[e].argmax() == gold[e]) for e in examples}
        told_here = 0.0 if i == 1 else told
        logs |= {(ordering, e): z[e] - np.logaddexp.reduce(z[e]) for e in examples if rng.random() < told_here}
    table = np.eye(num_labels)[gold]

    def told_of(ordering, example):
        unseen = [example % num_labels] if (example + len(ordering[0])) % 7 == 0 else []
        return (logs[ordering, example], unseen) if (ordering, example) in logs else None

    responses = LabelResponses(
        table,
        told_of,
        shares_to_try(table)[:, ::-1] if calibrating else None,  # the first guess is wrong
        calibrating,
    )
    model = OrderingModel(
        space,
        classes=[[i % 2 for i in range(space.sizes[0])]],
        example_classes=gold if classes else None,
        responses=responses if told else None,
    )
    first = model.fit(scores, kept=[space.identity, WITHOUT_DEMOS])
    fitted = model.fit(scores, earlier=first.variances, kept=[space.identity, WITHOUT_DEMOS])
    best = fitted.estimates()[0].ordering
    gain = fitted.gains(space.identity)[best]
    effect = fitted.calibration(best)
    calibrations = map(fitted.calibration, orderings[:9])
    ways = calibration_effect(fitted, best, best, applied=False)
    return {
        "estimates": [[e.score for e in each.estimates()[::7]] for each in (first, fitted)],
        "gain": [gain.expected, gain.probability, gain.deviation, gain.probability_calibrated],
        "without demos": [fitted.gains(WITHOUT_DEMOS)[best].expected, fitted.as_it_is(WITHOUT_DEMOS)],
        "expected": [fitted.expected_scores(space.identity)[best], fitted.as_it_is(best)],
        "interval": fitted.interval(best, 0.6, reference=space.identity),
        "calibration": effect and [*effect.offsets, effect.before, effect.after],
        "calibrations": [x for e in calibrations if e for x in (e.offsets[0], e.before, e.after)],
        "labels": [*ways.shares, *ways.always] if ways else [],
        "others": fitted.predict(space.draw(5, rng)).tolist(),
    }


@pytest.mark.parametrize("case", CASES)
def test_are_what_they_were(case):
    told = json.loads(NUMBERS.read_text())[case]
    found = numbers_of(**CASES[case])
    assert told.keys() == found.keys()
    for name, numbers in told.items():
        assert (numbers is None) == (found[name] is None)
        np.testing.assert_allclose(found[name] or [], numbers or [], rtol=1e-6, atol=2e-6, err_msg=name)


if __name__ == "__main__":
    found = {case: numbers_of(**options) for case, options in CASES.items()}
    NUMBERS.write_text(json.dumps(found) + "\n")

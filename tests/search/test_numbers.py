"""Results of the score model for fixed scores, to detect unintended changes of its arithmetic.

After an intended change, run `python tests/search/test_numbers.py` to update the expected results.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from plr_dspy import OrderingSpace
from plr_dspy.compiling.effect import estimate_effect
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
    "log-probabilities": {"share_known": 0.9},
    "calibrated": {"share_known": 0.9, "num_labels": 3, "calibrating": True},
    "calibrated arrangements": {"share_known": 1.0, "calibrating": True, "space": ARRANGED},
}


def numbers_of(*, space=ORDERS, count=40, classes=False, share_known=0.0, num_labels=2, calibrating=False):
    """Return results of a fitted model."""
    rng = np.random.default_rng(7)
    every_fifth = (np.arange(24) % 5 == 0).astype(int)
    gold = rng.integers(num_labels, size=24) if num_labels > 2 else every_fifth
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
        own_share = 0.0 if i == 1 else share_known
        for example in examples:
            if rng.random() < own_share:
                logs[ordering, example] = z[example] - np.logaddexp.reduce(z[example])
    table = np.eye(num_labels)[gold]

    def logprobs_of(ordering, example):
        if (ordering, example) not in logs:
            return None
        unseen = []
        if (example + len(ordering[0])) % 7 == 0:
            unseen = [example % num_labels]
        return logs[ordering, example], unseen

    responses = LabelResponses(
        table,
        logprobs_of,
        # Put the wrong shares first, so that the model must choose other shares.
        shares_to_try(table)[:, ::-1] if calibrating else None,
        calibrating,
    )
    model = OrderingModel(
        space,
        classes=[[i % 2 for i in range(space.sizes[0])]],
        example_classes=gold if classes else None,
        responses=responses if share_known else None,
    )
    fitted = model.fit(scores)
    return {
        "estimates": [estimate.score for estimate in fitted.estimates()[::7]],
        **numbers_of_fit(fitted, space, orderings),
        "others": fitted.predict(space.draw(5, rng)).tolist(),
    }


def calibration_of(fitted, ordering):
    """Return an ordering's offsets, its expected score without calibration, and its gain from calibration."""
    if fitted.responses is None or ordering not in fitted.orderings:
        return None
    answers = fitted.responses.answers
    number = fitted.orderings.index(ordering)
    gain = answers.gain_of_calibration(number).summary().expected
    return [*answers.rounded_offsets(number), answers.score_as_it_is(number), *gain.tolist()]


def numbers_of_fit(fitted, space, orderings):
    best = fitted.estimates()[0].ordering
    gain = fitted.gains(space.identity)[best]
    calibrations = []
    for ordering in orderings[:9]:
        if calibration := calibration_of(fitted, ordering):
            first_offset, *_, score, gain_of_calibration = calibration
            calibrations += [first_offset, score, gain_of_calibration]
    ways = estimate_effect(fitted, best, best, applied=False)
    return {
        "gain": [gain.expected, gain.probability, gain.deviation, gain.probability_alike],
        "without demos": [fitted.gains(WITHOUT_DEMOS)[best].expected, fitted.as_it_is(WITHOUT_DEMOS)],
        "expected": [fitted.expected_scores(space.identity)[best], fitted.as_it_is(best)],
        "interval": fitted.interval(best, 0.6, reference=space.identity),
        "calibration": calibration_of(fitted, best),
        "calibrations": calibrations,
        "labels": list(ways.shares) if ways else [],
    }


@pytest.mark.parametrize("case", CASES)
def test_numbers_have_not_changed(case):
    expected = json.loads(NUMBERS.read_text())[case]
    computed = numbers_of(**CASES[case])
    assert expected.keys() == computed.keys()
    for name, numbers in expected.items():
        assert (numbers is None) == (computed[name] is None)
        options = {"rtol": 1e-6, "atol": 2e-6, "err_msg": name}
        np.testing.assert_allclose(computed[name] or [], numbers or [], **options)


if __name__ == "__main__":
    computed = {case: numbers_of(**options) for case, options in CASES.items()}
    NUMBERS.write_text(json.dumps(computed) + "\n")

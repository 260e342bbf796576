"""Probabilities of labels from those of tokens, against hand-made and exhaustive cases."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plr_dspy.labels.reader import Position, from_alternatives, label_position

RATINGS = [str(i) for i in range(1, 11)]


def tokens(probabilities):
    return {token: math.log(p) for token, p in probabilities.items()}


class TestFromAlternatives:
    @pytest.mark.parametrize(
        ("labels", "told", "after", "expected"),
        [
            (["yes", "no"], {" yes": 0.5, " n": 0.3, " mixed": 0.1}, {}, [0.5, 0.3]),
            (["yes", "no"], {" yes": 0.5, " Yes": 0.1, '"yes': 0.05, " no": 0.2}, {}, [0.65, 0.2]),
            (["yes", "no"], {" yesterday": 0.5, " yes": 0.2, " yes.": 0.1, " no": 0.1}, {}, [0.3, 0.1]),
            (["US", "us"], {"US": 0.4, "us": 0.3}, {}, [0.4, 0.3]),
            (["negative", "neutral", "positive"], {" ne": 0.6, " positive": 0.4}, {}, [0.3, 0.3, 0.4]),
            (["(A)", "(B)"], {" (A)": 0.6, "(B)": 0.3}, {}, [0.6, 0.3]),
            (["[yes]", "[no]"], {" [yes]": 0.6, "[no]": 0.3}, {}, [0.6, 0.3]),
            (RATINGS, {"10": 0.5, "1": 0.4, "5": 0.1}, {}, [0.4, 0, 0, 0, 0.1, 0, 0, 0, 0, 0.5]),
            (["positive", "negative"], {" I": 0.5, " The": 0.5}, {}, [0, 0]),
            (
                ["negative", "neutral", "positive"],
                {" ne": 0.6, " positive": 0.4},
                {" ne": {"gative": 0.25, "utral": 0.75}},
                [0.15, 0.45, 0.4],
            ),
            (
                ["number", "number theory", "algebra"],
                {" number": 0.5, " algebra": 0.5},
                {" number": {" theory": 0.2, "\n": 0.7, ".": 0.1}},
                [0.4, 0.1, 0.5],
            ),
            (["1", "2"], {" ": 0.8}, {" ": {"1": 0.5, "2": 0.25}}, [0.4, 0.2]),
            (
                ["number", "number theory"],
                {"": 0.9, " number": 0.1},  # llama.cpp spells the end of the text so.
                {" number": {"": 0.9, " theory": 0.1}},
                [0.09, 0.01],
            ),
        ],
    )
    def test_with_and_without_later_tokens(self, labels, told, after, expected):
        after = {text: tokens(each) for text, each in {"": told, **after}.items()}
        np.testing.assert_allclose(from_alternatives(after, labels), expected)

    @given(st.data())
    def test_is_exact_where_every_token_is_known(self, data):
        """A model of letters: the probability of a label is the product of those of its letters and its end."""
        labels = data.draw(
            st.lists(st.text("abc", min_size=1, max_size=4), min_size=2, max_size=6, unique=True)
        )
        after = {}
        for text in {label[:i] for label in labels for i in range(len(label) + 1)}:
            drawn = data.draw(st.lists(st.integers(1, 9), min_size=4, max_size=4))
            after[text] = tokens({t: n / sum(drawn) for t, n in zip("abc\n", drawn, strict=True)})
        exact = [
            math.prod(math.exp(after[label[:i]][letter]) for i, letter in enumerate(label + "\n"))
            for label in labels
        ]
        found = from_alternatives(after, labels)
        # Once a label is the only one left, its remaining letters are taken for granted.
        assert np.all(found >= np.array(exact) - 1e-9)
        assert found.sum() <= 1 + 1e-9


@pytest.mark.parametrize(
    ("reply", "labels", "answered", "name", "position"),
    [
        (
            "[[| ##| sentiment| ##| ]]\n|positive|\n\n|[[ ## completed ## ]]",
            "positive negative",
            0,
            "sentiment",
            5,
        ),
        # Unreadable; what was thought aloud comes first; tokens that hold more; parts of words; no label at all; words
        # after the answer; a word of the format; something else in the label's place.
        ("It| is| negative| or| positive", "positive negative", None, "label", 2),
        ("not| positive| at| all|\n\n|negative|,| not| positive", "positive negative", 1, "label", 5),
        ('{"|label|": "|no|"}', "yes no", 1, "label", 3),
        ('{"label"|: "no"}', "yes no", 1, "label", 1),
        ("nothing| now| no", "yes no", None, "label", 2),
        ("I| cannot", "yes no", None, "label", 0),
        ("[[ ## answer ## ]]\n|yes|\n\n[[ ## why ## ]]\n|the answer is |yes", "yes no", 0, "answer", 1),
        ("[[ ## status ## ]]\n|completed|\n\n[[ ## completed ## ]]", "completed pending", 0, "status", 1),
        ("[[ ## label ## ]]\n|perhaps|\n\n", "yes no", None, "label", 1),
    ],
)
def test_where_the_label_stands(reply, labels, answered, name, position):
    labels = labels.split()
    places = [Position(text, {text: -0.1}) for text in reply.split("|")]
    label = None if answered is None else labels[answered]
    assert label_position(places, labels, label, name=name) == position

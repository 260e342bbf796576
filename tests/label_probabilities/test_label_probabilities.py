"""Label probabilities from token probabilities, against hand-made and exhaustive cases."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plr_dspy.label_probabilities.tokens import (
    Position,
    from_alternatives,
    from_continuations,
    label_position,
    path,
)


def tokens(probabilities):
    return {token: math.log(p) for token, p in probabilities.items()}


class TestFromAlternatives:
    def test_first_tokens_that_tell_labels_apart(self):
        found = from_alternatives(
            tokens({" positive": 0.5, " neg": 0.3, " mixed": 0.1}), ["positive", "negative"]
        )
        np.testing.assert_allclose(found, [0.5, 0.3])

    def test_tokens_that_spell_a_label_otherwise_count_together(self):
        spelled = tokens(
            {" positive": 0.4, "positive": 0.1, " Positive": 0.1, '"positive': 0.05, " negative": 0.2}
        )
        np.testing.assert_allclose(from_alternatives(spelled, ["positive", "negative"]), [0.65, 0.2])

    def test_words_that_only_begin_like_a_label_do_not_count(self):
        spelled = tokens({" yesterday": 0.5, " yes": 0.2, " yes.": 0.1, " no": 0.1, " north": 0.1})
        np.testing.assert_allclose(from_alternatives(spelled, ["yes", "no"]), [0.3, 0.1])

    def test_labels_that_differ_in_case_alone_keep_it(self):
        np.testing.assert_allclose(
            from_alternatives(tokens({"US": 0.4, "us": 0.3}), ["US", "us"]), [0.4, 0.3]
        )

    def test_a_shared_first_token_is_followed(self):
        after = {" ne": tokens({"gative": 0.25, "utral": 0.75}), " neut": {}}
        first = tokens({" ne": 0.6, " positive": 0.4})
        found = from_alternatives(first, ["negative", "neutral", "positive"], follow=after.get)
        np.testing.assert_allclose(found, [0.15, 0.45, 0.4])

    def test_a_shared_token_that_nobody_can_follow_is_shared_evenly(self):
        first = tokens({" ne": 0.6, " positive": 0.4})
        found = from_alternatives(first, ["negative", "neutral", "positive"])
        np.testing.assert_allclose(found, [0.3, 0.3, 0.4])

    def test_a_label_that_another_begins_with_ends_where_the_other_does_not_go_on(self):
        after = {" number": tokens({" theory": 0.2, "\n": 0.7, ".": 0.1})}
        first = tokens({" number": 0.5, " algebra": 0.5})
        found = from_alternatives(first, ["number", "number theory", "algebra"], follow=after.get)
        np.testing.assert_allclose(found, [0.4, 0.1, 0.5])

    def test_a_space_of_its_own_is_followed_into_the_labels(self):
        after = {" ": tokens({"1": 0.5, "2": 0.25})}
        np.testing.assert_allclose(
            from_alternatives(tokens({" ": 0.8}), ["1", "2"], follow=after.get), [0.4, 0.2]
        )

    @pytest.mark.parametrize("end", [0.5, 0.9, 0.998])
    def test_an_empty_text_is_the_end_of_the_answer(self, end):
        """llama.cpp spells the end of the text so; it begins no label, and is never followed."""
        asked = []

        def follow(text):
            asked.append(text)
            return tokens({"": end, " theory": 1 - end})

        first = tokens({"": end, " number": 1 - end})
        found = from_alternatives(first, ["number", "number theory"], follow=follow)
        np.testing.assert_allclose(found, [(1 - end) * end, (1 - end) ** 2])
        assert asked == [" number"]

    def test_a_token_that_is_hardly_ever_taken_is_not_followed(self):
        def follow(text):
            raise AssertionError("a call for nothing")

        first = tokens({" ne": 1e-5, " positive": 0.9})
        found = from_alternatives(first, ["negative", "neutral", "positive"], follow=follow)
        np.testing.assert_allclose(found, [0.5e-5, 0.5e-5, 0.9])

    @pytest.mark.parametrize("labels", [["(A)", "(B)"], ["[yes]", "[no]"], ["'a'", "'b'"]])
    def test_labels_that_begin_with_a_mark(self, labels):
        first, second = labels
        found = from_alternatives(tokens({f" {first}": 0.6, second: 0.3}), labels)
        np.testing.assert_allclose(found, [0.6, 0.3])

    def test_a_token_that_is_a_label_is_not_shared_with_one_that_another_token_spells(self):
        ratings = [str(i) for i in range(1, 11)]
        found = from_alternatives(tokens({"10": 0.5, "1": 0.4, "5": 0.1}), ratings)
        np.testing.assert_allclose(found, [0.4, 0, 0, 0, 0.1, 0, 0, 0, 0, 0.5])

    def test_no_label_among_them_is_no_probability(self):
        assert from_alternatives(tokens({" I": 0.5, " The": 0.5}), ["positive", "negative"]).sum() == 0

    @given(st.data())
    def test_is_exact_where_every_token_is_followed(self, data):
        """A model of letters: the probability of a label is the product of those of its letters and its end."""
        labels = data.draw(
            st.lists(st.text("abc", min_size=1, max_size=4), min_size=2, max_size=6, unique=True)
        )
        weights = {}

        def follow(text):
            shares = weights.setdefault(text, None)
            if shares is None:
                drawn = data.draw(st.lists(st.integers(1, 9), min_size=4, max_size=4))
                shares = weights[text] = {t: n / sum(drawn) for t, n in zip("abc\n", drawn, strict=True)}
            return tokens(shares)

        exact = [
            math.prod(math.exp(follow(label[:i])[letter]) for i, letter in enumerate(label + "\n"))
            for label in labels
        ]
        found = from_alternatives(follow(""), labels, follow=follow)
        # Once a label is the only one left, its remaining letters are taken for granted.
        assert np.all(found >= np.array(exact) - 1e-9)
        assert found.sum() <= 1 + 1e-9


class TestFromContinuations:
    def test_sums_what_is_not_shared(self):
        replies = [
            [("Review", -3.0), (":", -1.0), (" pos", -0.5), ("itive", -0.1)],
            [("Review", -3.0), (":", -1.0001), (" ne", -1.0), ("gat", -0.2), ("ive", -0.1)],
        ]
        np.testing.assert_allclose(from_continuations(replies), [-0.6, -1.3])

    def test_continuations_that_share_their_first_tokens(self):
        replies = [
            [("x", -1.0), (" ne", -2.0), ("gative", -0.5)],
            [("x", -1.0), (" ne", -2.0), ("utral", -1.5)],
        ]
        np.testing.assert_allclose(from_continuations(replies), [-0.5, -1.5])

    def test_tokens_that_swallow_the_end_of_the_prompt(self):
        replies = [[("A", -1.0), (": yes", -0.3)], [("A", -1.0), (":", -0.2), (" no", -0.4)]]
        np.testing.assert_allclose(from_continuations(replies), [-0.3, -0.6])


def reply(*texts):
    return [Position(text, {text: -0.1}) for text in texts]


class TestLabelPosition:
    CHAT = reply("[[", " ##", " sentiment", " ##", " ]]\n", "positive", "\n\n", "[[ ## completed ## ]]")

    def test_of_a_chat_reply(self):
        assert label_position(self.CHAT, ["positive", "negative"], "positive", name="sentiment") == 5

    def test_of_a_reply_that_could_not_be_read(self):
        assert (
            label_position(
                reply("It", " is", " negative", " or", " positive"),
                ["positive", "negative"],
                None,
                name="label",
            )
            == 2
        )

    def test_the_answer_comes_after_what_was_thought_aloud(self):
        thought = reply("not", " positive", " at", " all", "\n\n", "negative", ",", " not", " positive")
        assert label_position(thought, ["positive", "negative"], "negative", name="label") == 5

    def test_json(self):
        assert (
            label_position(reply('{"', "label", '": "', "no", '"}'), ["yes", "no"], "no", name="label") == 3
        )

    def test_a_token_that_holds_more_than_the_label(self):
        assert label_position(reply('{"label"', ': "no"}'), ["yes", "no"], "no", name="label") == 1

    def test_parts_of_words_are_no_labels(self):
        assert label_position(reply("nothing", " now", " no"), ["yes", "no"], None, name="label") == 2

    def test_a_reply_without_labels_is_read_at_its_beginning(self):
        assert label_position(reply("I", " cannot"), ["yes", "no"], None, name="label") == 0

    def test_words_after_the_answer_do_not_count(self):
        explained = reply("[[ ## answer ## ]]\n", "yes", "\n\n[[ ## why ## ]]\n", "the answer is ", "yes")
        assert label_position(explained, ["yes", "no"], "yes", name="answer") == 1

    def test_a_label_that_is_also_a_word_of_the_format(self):
        marked = reply("[[ ## status ## ]]\n", "completed", "\n\n[[ ## completed ## ]]")
        assert label_position(marked, ["completed", "pending"], "completed", name="status") == 1


def test_the_path_knows_what_follows_what_was_generated():
    positions = [Position(" ne", {" ne": -0.1}), Position("utral", {"utral": -0.2, "gative": -1.7})]
    follow = path(positions, 0)
    assert follow(" ne") == {"utral": -0.2, "gative": -1.7}
    assert follow(" neutral") is None
    assert follow(" po") is None

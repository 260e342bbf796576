"""Label probabilities of the real local model, and the methods that live on them."""

import logging
import math
from typing import Literal

import dspy
import numpy as np
import pytest
from brief import brief_reviews
from dspy import lm15

from plr_dspy import PlainTextAdapter
from plr_dspy.baselines import LocalE
from plr_dspy.data import load_reviews
from plr_dspy.label_probabilities.adapter import LabelProbe
from plr_dspy.label_probabilities.reader import reading
from plr_dspy.label_probabilities.requests import LogprobRequests
from plr_dspy.label_probabilities.servers import TokenServers

REVIEWS = load_reviews("train")


class Sentiment(dspy.Signature):
    review: str = dspy.InputField()
    sentiment: Literal["negative", "positive"] = dspy.OutputField()


def accuracy(example, prediction, trace=None):
    return example.sentiment == prediction.sentiment


def program(signature=Sentiment, num_demos=4, called="{}", reviews=REVIEWS):
    student = dspy.Predict(signature)
    student.demos = [
        dspy.Example(review=example.review, sentiment=called.format(example.sentiment))
        for example in reviews[:num_demos]
    ]
    return student


def asked(lm, signature, adapter, **demos):
    probe = LabelProbe(adapter, purpose="the test", servers=TokenServers("the test"))
    with dspy.context(lm=lm, adapter=probe):
        answer = program(signature, **demos)(review=REVIEWS[20].review)
    (found,) = probe.found
    return found, answer


class TestPlainCompletions:
    def test_are_those_of_the_next_token(self, server):
        lm = server.lm(cache=False)
        found, answer = asked(lm, Sentiment, PlainTextAdapter())
        messages = PlainTextAdapter().format(Sentiment, program().demos, {"review": REVIEWS[20].review})
        config = lm15.Config(max_tokens=1, temperature=0.0, logprobs=20)
        reply = lm(
            lm15.Request(model=lm.model, messages=(lm15.Message.user(messages[0]["content"]),), config=config)
        )
        top = {token.token: math.exp(token.logprob) for token in reply.logprobs[0].top}
        p = np.array([top[" negative"], top[" positive"]])
        np.testing.assert_allclose(found, p / p.sum(), atol=0.02)
        assert answer.sentiment == ["negative", "positive"][int(found.argmax())]

    def test_labels_that_share_their_first_token_are_told_apart(self, server):
        class Wordy(dspy.Signature):
            review: str = dspy.InputField()
            sentiment: Literal["a positive one", "a negative one", "a neutral one"] = dspy.OutputField()

        found, _ = asked(server.lm(cache=False), Wordy, PlainTextAdapter(), called="a {} one")
        assert found.sum() == pytest.approx(1.0)
        assert len({round(p, 6) for p in found}) == 3  # not shared evenly

    def test_usage_is_tracked_and_nothing_warned_of(self, server, caplog):
        with dspy.track_usage() as usage:
            asked(server.lm(cache=False), Sentiment, PlainTextAdapter())
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        (counts,) = usage.get_total_tokens().values()
        assert counts["prompt_tokens"] > 50


@pytest.mark.parametrize("route", ["chat", "litellm"])
def test_chat_replies(server, route):
    """The model does not speak the format; what it says first is read all the same."""
    found, _ = asked(server.lm(route, cache=False, max_tokens=8), Sentiment, PlainTextAdapter())
    assert found.sum() == pytest.approx(1.0)


def test_those_of_a_programs_own_call(server):
    """Greedy answers are the likeliest label, and the probabilities are those of the probe."""
    lm, adapter = server.lm(cache=False), PlainTextAdapter()
    labels = {"negative": "negative", "positive": "positive"}
    reader = reading(adapter, "sentiment", labels, requests=LogprobRequests())
    with dspy.context(lm=lm, adapter=reader):
        answer = program()(review=REVIEWS[20].review)
    (found,) = reader.readings
    p = np.exp(found.log_probabilities)
    assert answer.sentiment == found.label == list(labels)[int(p.argmax())]
    np.testing.assert_allclose(p, asked(lm, Sentiment, adapter)[0], atol=0.02)


def test_a_method_that_lives_on_them(server, tmp_path):
    """The others run in notebooks (GlobalE, PDO) and in a grid (DEmO)."""
    reviews = brief_reviews("train", 31)
    optimizer = LocalE(accuracy, num_candidates=3, max_metric_calls=15, display_progress=False)
    with dspy.context(lm=server.lm(), adapter=PlainTextAdapter()):
        compiled = optimizer.compile(program(reviews=reviews), trainset=reviews[:24])
        assert compiled(review=reviews[30].review).sentiment in ("negative", "positive")
    assert 0 < optimizer.report.program_calls["total"] <= 15
    compiled.save(tmp_path / "program.json")

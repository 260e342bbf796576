"""Label probabilities of the real local model, and what lives on them, counted at its server."""

import math

import dspy
import numpy as np
from brief import Sentiment
from dspy import lm15

from plr_dspy import PlainTextAdapter
from plr_dspy.data import load_reviews
from plr_dspy.labels.outputs import label_output
from plr_dspy.labels.reader import LogprobRequests, labels_read

REVIEWS = load_reviews("train")


def test_are_those_of_the_next_token(server):
    """Greedy answers are the likeliest label."""
    lm, student = server.lm(cache=False), dspy.Predict(Sentiment)
    student.demos = [dspy.Example(review=each.review, sentiment=each.sentiment) for each in REVIEWS[:4]]
    with (
        dspy.context(lm=lm, adapter=PlainTextAdapter()),
        labels_read(student, label_output(student), LogprobRequests()) as reader,
    ):
        answer = student(review=REVIEWS[20].review)
    (found,) = reader.readings
    (message,) = PlainTextAdapter().format(Sentiment, student.demos, {"review": REVIEWS[20].review})
    config = lm15.Config(max_tokens=1, temperature=0.0, logprobs=20)
    request = lm15.Request(model=lm.model, messages=(lm15.Message.user(message["content"]),), config=config)
    top = {token.token: math.exp(token.logprob) for token in lm(request).logprobs[0].top}
    p = np.array([top[" negative"], top[" positive"]])
    np.testing.assert_allclose(np.exp(found.log_probabilities), p / p.sum(), atol=0.02)
    assert answer.sentiment == found.label == ["negative", "positive"][int(p.argmax())]

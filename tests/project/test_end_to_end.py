"""PLReorder and label probabilities on the real local model."""

import contextlib
import math

import dspy
import litellm
import numpy as np
import pytest
from brief import Sentiment, accuracy, brief_reviews
from dspy import lm15

from plr_dspy import PlainTextAdapter, PLReorder
from plr_dspy.data import load_reviews
from plr_dspy.labels.outputs import label_output
from plr_dspy.labels.reader import LogprobRequests, labels_read


@pytest.mark.parametrize(("route", "options"), [("completion", {}), ("chat", {"engine": "litellm"})])
def test_a_compile_works_on_every_route_to_the_server(server, route, options, monkeypatch):
    through = []

    def counted(function):
        def call(*args, **options):
            through.append(1)
            return function(*args, **options)

        return call

    for name in ("completion", "text_completion"):
        monkeypatch.setattr(litellm, name, counted(getattr(litellm, name)))
    trainset = brief_reviews("train", 16)
    student = dspy.LabeledFewShot(k=3).compile(dspy.Predict(Sentiment), trainset=trainset)
    rounds = {"num_iterations": 1, "num_samples": 3}
    reorder = PLReorder(accuracy, max_metric_calls=24, num_threads=2, **rounds)
    lm = server.lm(route, max_tokens=4, **options)
    default = server.lm(route)
    assert not default.cache
    assert default.kwargs["temperature"] == 0.0
    assert default.kwargs["max_tokens"] == 16
    # Few replies in chat format can be parsed, which may end the compile.
    unread = contextlib.suppress(RuntimeError) if route == "chat" else contextlib.nullcontext()
    with dspy.context(lm=lm, adapter=PlainTextAdapter()), unread:
        reorder.compile(student, trainset=trainset)
    compiled = reorder.best_program
    report = reorder.report
    calls = report.program_calls["total"]
    assert 10 < calls <= 24
    assert len(through) == (calls if route == "completion" or options else 0)
    assert {error.type for error in report.errors} <= {"AdapterParseError"}
    tokens = next(iter(report.tokens.values()))
    assert tokens["prompt_tokens"] > 30 * calls
    assert sorted(d.review for d in compiled.demos) == sorted(d.review for d in student.demos)
    if route == "completion":
        assert not report.errors, "the model answers plain few-shot prompts with labels only"
        assert report.comparison.expected_chosen[0] > 0.3
        assert report.signal.used == "logprobs"


def test_label_probabilities_agree_with_those_of_the_next_token(server):
    """The answer must also be the likeliest label."""
    *shown, asked = load_reviews("train")[:5]
    lm = server.lm(cache=False)
    student = dspy.Predict(Sentiment)
    student.demos = [dspy.Example(review=r.review, sentiment=r.sentiment) for r in shown]
    with (
        dspy.context(lm=lm, adapter=PlainTextAdapter()),
        labels_read(student, label_output(student), LogprobRequests()) as reader,
    ):
        answer = student(review=asked.review)
    (reading,) = reader.readings
    (message,) = PlainTextAdapter().format(Sentiment, student.demos, {"review": asked.review})
    config = lm15.Config(max_tokens=1, temperature=0.0, logprobs=20)
    messages = (lm15.Message.user(message["content"]),)
    request = lm15.Request(model=lm.model, messages=messages, config=config)
    (logprobs, *_) = lm(request).logprobs
    top = {token.token: math.exp(token.logprob) for token in logprobs.top}
    p = np.array([top[" negative"], top[" positive"]])
    np.testing.assert_allclose(np.exp(reading.log_probabilities), p / p.sum(), atol=0.02)
    assert answer.sentiment == reading.label == ["negative", "positive"][int(p.argmax())]

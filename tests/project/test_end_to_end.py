"""The main job on the real local model: a program, its demos, a better order, a saved file."""

import dspy
import litellm
import pytest
from brief import Sentiment, accuracy, brief_reviews

from plr_dspy import PlainTextAdapter, PLReorder


@pytest.mark.parametrize(("route", "options"), [("completion", {}), ("chat", {"engine": "litellm"})])
def test_every_route_to_the_server(server, route, options, monkeypatch):
    through = []
    for name in ("completion", "text_completion"):
        original = getattr(litellm, name)
        monkeypatch.setattr(litellm, name, lambda *args, _f=original, **kw: through.append(1) or _f(*args, **kw))
    trainset = brief_reviews("train", 16)
    student = dspy.LabeledFewShot(k=3).compile(dspy.Predict(Sentiment), trainset=trainset)
    reorder = PLReorder(accuracy, max_metric_calls=24, num_iterations=1, num_samples=3, num_threads=2)
    lm, default = server.lm(route, max_tokens=4, **options), server.lm(route)
    assert (default.cache, default.kwargs["temperature"], default.kwargs["max_tokens"]) == (False, 0.0, 16)
    with dspy.context(lm=lm, adapter=PlainTextAdapter()):
        compiled = reorder.compile(student, trainset=trainset)
    report = reorder.report
    calls = report.program_calls["total"]
    assert report.distinct_prompts == 6
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

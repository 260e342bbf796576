"""PLReorder and label probabilities on a real vLLM server, through DSPy's own client and through litellm."""

import json
import math
import urllib.request

import dspy
import numpy as np
import pytest
from brief import Sentiment, accuracy
from notebook_runs import run_notebook

from plr_dspy import BatchCalibration, PlainTextAdapter, PLReorder, completion_lm
from plr_dspy.data import load_reviews
from plr_dspy.labels.outputs import label_output
from plr_dspy.labels.reader import LogprobRequests, labels_read

REVIEWS = load_reviews("train")


@pytest.fixture
def completions(vllm):
    return completion_lm(f"hosted_vllm/{vllm.model}", api_base=vllm.api_base, cache=False)


def chat_lm(vllm, **options):
    address = {"api_base": vllm.api_base, "api_key": "none"}
    return dspy.LM(
        f"hosted_vllm/{vllm.model}", cache=False, max_tokens=16, temperature=0, **address, **options
    )


@pytest.fixture
def chat(vllm):
    return chat_lm(vllm)


@pytest.fixture
def chat_litellm(vllm):
    """Return an LM with an option that DSPy's client does not support, so that it calls litellm."""
    return chat_lm(vllm, extra_body={"structured_outputs": {"choice": ["negative", "positive"]}})


def probabilities(lm, demos, review):
    program = dspy.Predict(Sentiment)
    program.demos = demos
    with (
        dspy.context(lm=lm, adapter=PlainTextAdapter()),
        labels_read(program, label_output(program), LogprobRequests("this test")) as reader,
    ):
        program(review=review)
    return np.exp(reader.readings[0].log_probabilities)


def test_label_probabilities_agree_with_the_server(vllm, completions):
    """Compare with the log-probabilities that the server returns for prompts that end with a label."""
    demos = REVIEWS[:4]
    review = REVIEWS[20].review
    read = probabilities(completions, demos, review)
    (message,) = PlainTextAdapter().format(Sentiment, demos, {"review": review})
    sums = []
    for label in ("negative", "positive"):
        body = {"model": vllm.model, "prompt": f"{message['content']} {label}", "max_tokens": 1}
        body |= {"temperature": 0, "prompt_logprobs": 0}
        url = f"{vllm.api_base}/completions"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as reply:
            tokens = json.load(reply)["choices"][0]["prompt_logprobs"]
        sums.append(sum(next(iter(token.values()))["logprob"] for token in tokens[1:]))
    p = 1 / (1 + math.exp(sums[1] - sums[0]))
    # vLLM computes with 16-bit numbers, so the results of two calls differ by up to .08.
    np.testing.assert_allclose(read, [p, 1 - p], atol=0.1)


def test_scoring_an_order_over_all_examples_hits_the_prefix_cache(vllm, completions):
    student = dspy.LabeledFewShot(k=8).compile(dspy.Predict(Sentiment), trainset=REVIEWS)
    rounds = {"auto": "paper", "num_iterations": 2, "num_samples": 5}
    reorder = PLReorder(accuracy, num_threads=4, display_progress=False, **rounds)
    names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    before = [vllm.count(name) for name in names]
    with dspy.context(lm=completions, adapter=PlainTextAdapter()):
        compiled = reorder.compile(student, trainset=REVIEWS[:60])
    queries, hits = (vllm.count(name) - b for name, b in zip(names, before, strict=True))
    assert hits / queries > 0.3, "prompts have about 300 tokens, and the cache has blocks of 128 tokens"
    assert not reorder.report.errors
    assert sorted(d.review for d in compiled.demos) == sorted(d.review for d in student.demos)


@pytest.mark.parametrize("route", ["chat", "chat_litellm"])
def test_chat(route, request):
    """Many answers of the small model cannot be parsed."""
    student = dspy.LabeledFewShot(k=3).compile(dspy.Predict(Sentiment), trainset=REVIEWS)
    reorder = PLReorder(accuracy, max_metric_calls=60, num_threads=4, display_progress=False)
    with dspy.context(lm=request.getfixturevalue(route), adapter=PlainTextAdapter()):
        try:
            reorder.compile(student, trainset=REVIEWS[:40])
        except RuntimeError as error:
            assert route == "chat" and "answers could not be parsed" in str(error)
    report = reorder.report
    assert 12 <= report.program_calls["total"] <= 60  # After 12 unparsable replies, the run ends.
    assert next(iter(report.tokens.values()))["prompt_tokens"] > 0
    expected = {"AdapterParseError"} if route == "chat" else set()
    assert {error.type for error in report.errors} <= expected


def test_the_notebook_about_several_predictors(vllm, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_BASE", vllm.api_base)
    monkeypatch.setenv("VLLM_MODEL", vllm.model)
    monkeypatch.chdir(tmp_path)
    shorter = {
        "from plr_dspy.data import load_reviews": "from brief import brief_reviews as load_reviews",
        "max_tokens=24": "max_tokens=4",
        "]\nprogram =": "][::4]\nprogram =",
    }
    output = run_notebook("04_several_predictors_vllm.ipynb", shorter)
    assert "of the prompt tokens were in vLLM's prefix cache" in output


@pytest.mark.parametrize("kind", ["completions", "chat", "chat_litellm"])
def test_calibrated_programs_make_one_request_per_prediction(kind, vllm, request):
    program = dspy.Predict(Sentiment)
    program.demos = REVIEWS[:4]
    before = vllm.count("vllm:request_success_total")
    with dspy.context(lm=request.getfixturevalue(kind), adapter=PlainTextAdapter()):
        optimizer = BatchCalibration(num_inputs=12, display_progress=False)
        calibrated = optimizer.compile(program, trainset=REVIEWS[:40])
        predictions = [calibrated(review=example.review) for example in REVIEWS[40:48]]
    assert vllm.count("vllm:request_success_total") - before == 12 + 8
    for prediction in predictions:
        probabilities = prediction.probabilities
        assert sum(probabilities.values()) == pytest.approx(1.0)
        # Uncalibrated answers are the model's replies. In a near tie, another label may be more probable.
        assert probabilities[prediction.sentiment] >= max(probabilities.values()) - 0.1

"""Label probabilities of a server that echoes, on a small language model whose every probability is known."""

import hashlib
import math
from collections import Counter
from typing import Literal

import dspy
import numpy as np
import pytest
from dspy import lm15
from hypothesis import given
from hypothesis import strategies as st

from plr_dspy import PlainTextAdapter
from plr_dspy.baselines.probing import probed
from plr_dspy.label_probabilities.continuations import Continuations
from plr_dspy.label_probabilities.servers import TokenServers
from plr_dspy.lm.engines import CompletionEngine

VOCABULARY = [
    *"abcdefghijklmnopqrstuvwxyz0123456789.: \n",
    " ye",
    " yes",
    "ter",
    " no",
    " north",
    "day",
    "s a",
]


class LanguageModel:
    """Reads the longest tokens first; the next one's probabilities depend on all that came before.

    Args:
        num_likeliest: Tokens that it tells of each place.
        sharpness: Of its distributions.
        vocabulary: Of its tokens.
    """

    def __init__(self, num_likeliest=20, sharpness=3.0, vocabulary=VOCABULARY):
        self.vocabulary = sorted(vocabulary, key=len, reverse=True)
        self.num_likeliest = num_likeliest
        self.sharpness = sharpness
        self.asked = Counter()

    def tokens(self, text):
        found = []
        while text:
            found.append(next(token for token in self.vocabulary if text.startswith(token)))
            text = text[len(found[-1]) :]
        return found

    def distribution(self, text):
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        logits = self.sharpness * np.random.default_rng(seed).normal(size=len(self.vocabulary))
        values = logits - np.log(np.exp(logits).sum())
        return dict(zip(self.vocabulary, values.tolist(), strict=True))

    def echo(self, text):
        self.asked["echo"] += 1
        before, found = "", []
        for token in self.tokens(text):
            found.append((token, self.distribution(before)[token]))
            before += token
        return found[1:]

    def likeliest(self, text):
        self.asked["likeliest"] += 1
        ranked = sorted(self.distribution(text).items(), key=lambda item: -item[1])
        return dict(ranked[: self.num_likeliest])

    def exact(self, prompt, texts):
        sums = np.array([sum(value for _, value in self.echo(prompt + text)) for text in texts])
        weights = np.exp(sums - sums.max())
        return weights / weights.sum()


def continuations_of(texts, model, prompt):
    return Continuations(texts, prompt, echo=model.echo, likeliest=model.likeliest)


TEXTS = [" yes", " yesterday", " no", " north", " 42"]


@given(
    st.sampled_from([1, 3, 20, len(VOCABULARY)]),
    st.floats(0.5, 8.0),
    st.lists(st.text("abc 12", max_size=8), min_size=2, max_size=4),
)
def test_are_those_of_the_echo(num_likeliest, sharpness, prompts):
    model = LanguageModel(num_likeliest, sharpness)
    prompts = [f"{prompt}:" for prompt in prompts]
    continuations = continuations_of(TEXTS, model, prompts[0])
    assert continuations.spelled is not None
    for prompt in prompts:
        masses = continuations.probabilities(prompt)
        np.testing.assert_allclose(masses / masses.sum(), model.exact(prompt, TEXTS), atol=1e-4)


def test_no_prompt_but_the_first_is_echoed_where_the_likeliest_tokens_tell_all():
    model = LanguageModel(num_likeliest=len(VOCABULARY))
    continuations = continuations_of([" yes", " no"], model, "a:")
    model.asked.clear()
    for prompt in ("b:", "c:", "d:"):
        continuations.probabilities(prompt)
    assert model.asked == {"likeliest": 3}


def test_a_text_that_cannot_be_likely_is_not_followed():
    model = LanguageModel(num_likeliest=len(VOCABULARY), sharpness=20.0)
    prompt = next(p for p in ("a:", "b:", "c:", "d:") if max(model.exact(p, TEXTS[1:3])) > 1 - 1e-6)
    continuations = continuations_of(TEXTS[1:3], model, "z:")
    model.asked.clear()
    continuations.probabilities(prompt)
    assert model.asked["likeliest"] < len(model.tokens(TEXTS[1])) + 1


@pytest.mark.parametrize("joint", [": yes", ":\n"])
def test_where_prompt_and_text_share_a_token_every_prompt_is_echoed(joint):
    model = LanguageModel(vocabulary=[*VOCABULARY, ": yes", ":\n"])
    texts = [joint.removeprefix(":"), " no"]
    continuations = continuations_of(texts, model, "a:")
    assert continuations.spelled is None
    masses = continuations.probabilities("b:")
    np.testing.assert_allclose(masses / masses.sum(), model.exact("b:", texts))


def test_a_later_prompt_that_shares_a_token_with_a_text_is_echoed():
    model = LanguageModel(num_likeliest=1, vocabulary=[*VOCABULARY, "q: yes"])
    texts = [" yes", " no"]
    continuations = continuations_of(texts, model, "aa:")
    assert continuations.spelled == [[" yes"], [" no"]]
    prompts = [f"{c}q:" for c in "abcdefgh" if " yes" not in model.likeliest(f"{c}q:")]
    assert len(prompts) > 4
    for prompt in prompts:
        np.testing.assert_allclose(continuations.probabilities(prompt), model.exact(prompt, texts), atol=1e-4)


def test_a_server_whose_two_ways_disagree_is_echoed():
    class Shifted(LanguageModel):
        """Says what is likeliest of another model: as one with a template of its own would."""

        def likeliest(self, text):
            return super().likeliest(f"template {text}")

    model = Shifted()
    prompts = [f"{c}:" for c in "abcdef"]
    found = [continuations_of([" yes", " no"], model, prompt) for prompt in prompts]
    assert any(continuations.spelled is None for continuations in found)
    for prompt, continuations in zip(prompts, found, strict=True):
        if continuations.spelled is None:
            masses = continuations.probabilities(prompt)
            np.testing.assert_allclose(masses / masses.sum(), model.exact(prompt, [" yes", " no"]))


def lowered(text):
    """What the language model can read of it."""
    return "".join(c for c in text.lower() if c in VOCABULARY)


class EchoEngine(CompletionEngine):
    """The language model behind a completions endpoint that echoes, as vLLM's does."""

    def __init__(self, model):
        super().__init__("http://127.0.0.1:1/v1")
        self.language_model = model

    def complete(self, request):
        text = lowered(request.messages[0].text)
        likeliest = self.language_model.likeliest(text)
        answer = max(likeliest, key=likeliest.get)
        places = [{"token": answer, "logprob": likeliest[answer], "top": likeliest}]
        if echo := (request.config.extensions or {}).get("echo"):
            told = self.language_model.echo(text)
            places = [*({"token": token, "logprob": value, "top": {}} for token, value in told), *places]
        content = [
            {
                "token": place["token"],
                "logprob": place["logprob"],
                "top_logprobs": [{"token": t, "logprob": v} for t, v in place["top"].items()],
            }
            for place in places
        ]
        shown = request.messages[0].text if echo else ""
        return lm15.response_from_openai_chat(
            {
                "id": "fake",
                "model": "fake",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": shown + answer},
                        "finish_reason": "stop",
                        "logprobs": {"content": content},
                    }
                ],
                "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
            }
        )


class Question(dspy.Signature):
    text: str = dspy.InputField()
    answer: Literal["yes", "no", "yesterday"] = dspy.OutputField()


def test_a_program_is_probed_by_echo_and_leaves_no_history():
    """A label that another one begins with is told from it by the end of its line."""
    model = LanguageModel()
    lm = dspy.LM("text-completion-openai/fake", engine=EchoEngine(model), cache=False)
    program, servers = dspy.Predict(Question), TokenServers("the test")
    with dspy.context(lm=lm, adapter=PlainTextAdapter()):
        for text in ("a b c", "d e", "f"):
            found, prediction = probed(program, {"text": text}, purpose="the test", servers=servers)
            (message,) = PlainTextAdapter().format(Question, [], {"text": text})
            exact = model.exact(lowered(message["content"]), [" yes\n", " no\n", " yesterday\n"])
            np.testing.assert_allclose(found, exact, atol=1e-4)
            assert prediction.answer == ("yes", "no", "yesterday")[int(np.argmax(found))]
    assert not lm.history
    assert math.isclose(sum(found), 1.0)

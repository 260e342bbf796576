"""Redaction of keys in messages, without changes to other text."""

import re

import dspy
import pytest

from plr_dspy import completion_lm
from plr_dspy.runtime import Redactor

KEYS = """
Incorrect API key provided: sk-proj-SECRET123456 | http://x/v1?api_key=SECRET99&a=b
{'api_key': 'SECRET99'} | {"x-api-key": "SECRET99"} | Authorization: Basic SECRET99
authorization: Bearer SECRET99 | Authorization: token ghp_SECRET99 | https://user:SECRET99@host/v1
AKIASECRET99AAAA | AIzaSECRET99_abcdef | token=SECRET99
"""


@pytest.mark.parametrize("text", re.split(r"[|\n] ?", KEYS.strip().replace(" |", "|")))
def test_hides_text_that_looks_like_a_key(text):
    hidden = Redactor([])(text)
    assert "SECRET" not in hidden
    assert "[hidden]" in hidden


WORDS = """
KeyError: 'key_facts' | No module named 'hf_hub' | sk_learn is missing
max_token=16, max_tokens: 1024 | the token is not valid | http://127.0.0.1:8000/v1/chat
maximum context length is 4096 tokens
"""


@pytest.mark.parametrize("text", re.split(r"[|\n] ?", WORDS.strip().replace(" |", "|")))
def test_keeps_other_text(text):
    assert Redactor([])(text) == text


def test_hides_the_secrets_of_models(monkeypatch):
    monkeypatch.setenv("MY_VLLM_AUTH", "from the environment")
    monkeypatch.setenv("SORT_KEY", "question")
    models = [
        dspy.LM("openai/x", api_key="plain words", extra_headers={"authorization": "in a header"}),
        completion_lm("openai/x", api_base="http://127.0.0.1:1/v1", api_key="topsecretvalue"),
        completion_lm("openai/x", api_base="http://127.0.0.1:1/v1", api_key_env="MY_VLLM_AUTH"),
        None,
    ]
    text = "plain words | in a header | topsecretvalue | from the environment | question"
    assert Redactor(models)(text) == "[hidden] | [hidden] | [hidden] | [hidden] | question"

"""Label log-probabilities that are read from a program's own calls without changing the answers."""

import asyncio
import math
from typing import Literal

import dspy
import numpy as np
import pytest
from dspy import lm15
from dspy.clients.cache import Cache
from dspy.utils.exceptions import AdapterParseError, LMInvalidRequestError
from fakes import LabelEngine, logprobs_of
from hypothesis import given
from hypothesis import strategies as st
from label_engines import KIND, REFUSAL, classifier
from servers import Server, completion, running

from plr_dspy import PlainTextAdapter, completion_lm
from plr_dspy.labels import reader as module
from plr_dspy.labels.outputs import LabelOutput
from plr_dspy.labels.reader import LogprobRequests, from_alternatives, label_position, labels_read
from plr_dspy.lm.plain_text_adapter import labels_of


class Scripted(LabelEngine):
    """An engine that always replies with the same tokens. Each token is a string or a dict of probabilities."""

    def __init__(self, *tokens):
        super().__init__([], None)
        self.tokens = [token if isinstance(token, dict) else {token: 0.9, "Hm": 0.01} for token in tokens]

    def tops(self, texts, wanted):
        return self.tokens


def chat(*answer, name="label"):
    return Scripted(f"[[ ## {name} ## ]]\n", *answer, "\n\n[[ ## completed ## ]]")


CONFIDENT = {"positive": 0.9, "negative": 0.06, "Positive": 0.02, "the": 0.001}


def reader_of(program, kind=KIND, requests=None, decision=None):
    (name, _), *_ = program.named_predictors()
    output = LabelOutput(name, "label", labels_of(kind), kind)
    return labels_read(program, output, requests or LogprobRequests(), decision=decision)


def asked(engine, adapter=None, *, kind=KIND, program=None, requests=None, lm=None, **inputs):
    program = program or classifier(kind)
    with (
        dspy.context(lm=lm or engine.lm(), adapter=adapter or dspy.ChatAdapter()),
        reader_of(program, kind, requests) as reader,
    ):
        return program(**(inputs or {"text": "good"})), reader.readings


def probabilities(reading):
    return [math.exp(value) for value in reading.log_probabilities]


class TestReading:
    @pytest.mark.parametrize(
        ("adapter", "engine", "program"),
        [
            (dspy.ChatAdapter(), chat(CONFIDENT), None),
            (dspy.JSONAdapter(), Scripted('{"', "label", '": "', CONFIDENT, '"}'), None),
            (PlainTextAdapter(), Scripted(CONFIDENT), None),
            (
                dspy.ChatAdapter(),
                Scripted(
                    "[[ ## reasoning ## ]]\n",
                    {"negative": 0.7, "positive": 0.3},
                    " words\n\n[[ ## label ## ]]\n",
                    CONFIDENT,
                ),
                classifier(module=dspy.ChainOfThought),
            ),
        ],
        ids=["chat", "JSON", "plain text", "after the reasoning"],
    )
    @pytest.mark.parametrize("endpoint", ["chat", "responses"])
    def test_reading_for_each_adapter_and_endpoint(self, adapter, engine, program, endpoint):
        engine.asked.clear()
        answer, (reading,) = asked(engine, adapter, program=program, lm=engine.lm(model_type=endpoint))
        assert answer.label == reading.label == "positive"
        assert "logprobs" not in answer
        assert probabilities(reading) == pytest.approx([0.06 / 0.98, 0.92 / 0.98])
        assert engine.asked == [20]

    def test_labels_with_a_common_first_token_and_labels_inside_a_token(self):
        engine = chat({"very ": 0.8, "neutral": 0.2}, {"good": 0.75, "bad": 0.25})
        _, (reading,) = asked(engine, kind=Literal["very bad", "very good", "neutral"])
        assert probabilities(reading) == pytest.approx([0.2, 0.6, 0.2])
        tokens = {" ]]\npositive": 0.9, " ]]\nnegative": 0.1}  # No token begins with a label.
        answer, readings = asked(Scripted("[[ ## label ##", tokens))
        assert (answer.label, readings) == ("positive", [None])

    @pytest.mark.parametrize(
        ("alternatives", "kind", "expected"),
        [
            ({"yes": 0.9, "no": 0.09, "the": 0.01}, Literal["no", "yes", "mixed"], [0.09, 0.9, 0.01]),
            # Servers return a log-probability of -9999 for a probability of 0.
            ({"positive": 1.0, "negative": 0.0}, KIND, [math.exp(module.MIN_LOGPROB), 1.0]),
        ],
        ids=["not among the likeliest tokens", "probability of 0"],
    )
    def test_an_unlikely_label(self, alternatives, kind, expected):
        _, (reading,) = asked(chat(alternatives), kind=kind)
        assert probabilities(reading) == pytest.approx(expected, rel=1e-6)


class TestUnchangedBehavior:
    @pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, PlainTextAdapter])
    def test_callbacks_are_called_equally_often(self, adapter):
        class Counting(dspy.utils.BaseCallback):
            def on_adapter_format_start(self, call_id, instance, inputs):
                calls.append("format")

            def on_adapter_parse_start(self, call_id, instance, inputs):
                calls.append("parse")

        calls = []
        replies = {dspy.JSONAdapter: '{"label": "positive"}', PlainTextAdapter: "positive"}
        engine = Scripted(replies.get(adapter, "[[ ## label ## ]]\npositive"))
        with dspy.context(lm=engine.lm(), adapter=adapter(callbacks=[Counting()])):
            classifier()(text="good")
        asked(engine, adapter(callbacks=[Counting()]))
        half = len(calls) // 2
        assert calls[:half] == calls[half:] != []

    @pytest.mark.parametrize(
        "signature", ["text -> label", "text -> other: Literal['negative', 'positive']"]
    )
    def test_other_signatures_are_not_read(self, signature):
        engine = chat(CONFIDENT, name=signature.split()[2].rstrip(":"))
        _, readings = asked(engine, program=dspy.Predict(signature))
        assert (readings, engine.asked) == ([], [None])

    @pytest.mark.parametrize("where", ["program", "lm"])
    @pytest.mark.parametrize(("number", "requested"), [(1, 20), (5, 5), (30, 30)])
    def test_log_probabilities_that_the_user_requested_are_kept(self, where, number, requested):
        """Some providers return fewer alternatives than are requested by default."""
        engine = chat(CONFIDENT)
        wanted = {"logprobs": True, "top_logprobs": number}
        program = classifier(**(wanted if where == "program" else {}))
        answer, (reading,) = asked(
            engine, program=program, lm=engine.lm(**(wanted if where == "lm" else {}))
        )
        assert answer.logprobs.content[1].token == "positive"
        assert reading.label == "positive"
        assert engine.asked == [requested]

    def test_cached_replies_without_log_probabilities_are_not_reused(self):
        engine = chat(CONFIDENT)
        lm = engine.lm(cache=True)
        program = classifier()
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            program(text="cached")
        for _ in range(2):
            _, (reading,) = asked(engine, lm=lm, text="cached")
            assert reading.label == "positive"
        assert engine.asked == [None, 20]

    def test_histories_contain_replies_without_log_probabilities(self, capsys):
        engine = chat(CONFIDENT)
        lm = engine.lm()
        program = classifier()
        asked(engine, program=program, lm=lm)
        (entry,) = lm.history
        assert program.history == [entry]
        assert "logprob" not in str(entry["outputs"]) + str(entry["response"])
        assert entry["outputs"] == ["[[ ## label ## ]]\npositive\n\n[[ ## completed ## ]]"]
        assert entry["usage"]["completion_tokens"] == 5
        lm.inspect_history()
        assert "positive" in capsys.readouterr().out

    def test_async_replies_are_cached_only_on_disk(self):
        before = set(dspy.cache.memory_cache)
        engine = chat(CONFIDENT)
        lm = engine.lm(cache=True)
        text = "on the disk"
        program = classifier()
        with dspy.context(lm=lm), reader_of(program) as reader:
            for _ in range(2):
                asyncio.run(program.acall(text=text))
        first, second = reader.readings
        assert first == second is not None
        assert engine.asked == [20]
        assert set(dspy.cache.memory_cache) == before

    def test_unparsable_replies_raise_the_usual_error(self):
        engine = Scripted("no fields, no logprobs")
        requests = LogprobRequests()
        with pytest.raises(AdapterParseError):
            asked(engine, dspy.ChatAdapter(use_json_adapter_fallback=False), requests=requests)
        assert engine.asked == [20]
        assert not requests.reason


class TestEndpointsWithoutLogProbabilities:
    @pytest.mark.parametrize(
        ("refusal", "logprobs", "asked_for", "reason"),
        [
            (REFUSAL, True, [20, None, None, None], "rejects requests for log-probabilities"),
            (
                lm15.UnsupportedFeatureError("", feature="x"),
                True,
                [20, None, None, None],
                "rejects requests",
            ),
            (None, False, [20, None, None], "returns no log-probabilities"),
        ],
        ids=["refusal", "unsupported", "silence"],
    )
    def test_get_one_request_in_total(self, refusal, logprobs, asked_for, reason):
        engine = chat(CONFIDENT)
        requests = LogprobRequests()
        engine.refusal = refusal
        engine.logprobs = logprobs
        for _ in range(3):
            assert asked(engine, requests=requests)[0].label == "positive"
        assert engine.asked == asked_for
        assert requests.reason.startswith(f"fake/x {reason}")

    def test_errors_are_raised_after_a_success(self):
        engine = chat(CONFIDENT)
        requests = LogprobRequests()
        asked(engine, requests=requests)
        engine.refusal = REFUSAL
        with pytest.raises(LMInvalidRequestError):
            asked(engine, requests=requests)
        assert not requests.reason


def tokens(probabilities):
    return {token: math.log(p) for token, p in probabilities.items()}


LIKELY = {" positive": 0.6, " negative": 0.3, " the": 0.001}
IN_PLAIN = {"tokens": [" positive"], "text_offset": [0], "token_logprobs": [math.log(0.6)]}
IN_PLAIN["top_logprobs"] = [tokens(LIKELY)]


def provider(refuses=0):
    """Run a server that replies " positive", with log-probabilities if a request asks for them.

    Args:
        refuses: HTTP status of the error for requests that ask for log-probabilities, or 0 for no error.
    """

    def answer(request):
        asked = bool(request.body.get("logprobs") or request.body.get("top_logprobs"))
        if asked and refuses:
            message = "You are not allowed to request logprobs from this model."
            error = {"message": message, "type": "invalid_request_error", "code": None}
            return request.reply(refuses, {"error": error})
        plain = "prompt" in request.body
        logprobs = IN_PLAIN if plain else logprobs_of([LIKELY])
        return request.reply(
            200, completion(" positive", plain=plain, logprobs=logprobs if asked else None)
        )

    return running(Server(answer))


def lm_of(server, route, **options):
    options = {"cache": False, "num_retries": 0, "api_base": server.api_base, **options}
    if route == "plain":
        return completion_lm(route, **options)
    means = {"dspy": {}, "litellm": {"engine": "litellm"}}[route]
    return dspy.LM(f"openai/{route}", api_key="k", **means, **options)


@pytest.mark.parametrize("route", ["dspy", "litellm", "plain"])
class TestOverHTTP:
    """Chat and plain completions through DSPy's own client and through litellm."""

    def asked(self, lm, requests=None):
        answer, readings = asked(None, PlainTextAdapter(), lm=lm, requests=requests, text="good")
        assert answer.toDict() == {"label": "positive"}
        return readings

    def test_replies_are_cached_only_on_disk_if_there_is_a_disk_cache(self, route, monkeypatch):
        """With a disk cache, the memory cache stores no reply: a reply of 150 tokens would take 3 MB."""
        before = set(dspy.cache.memory_cache)
        with provider() as server:
            lm = lm_of(server, route, cache=True)
            (reading,) = first = self.asked(lm)
            assert probabilities(reading) == pytest.approx([1 / 3, 2 / 3])
            assert set(dspy.cache.memory_cache) == before
            assert self.asked(lm) == first
            assert set(dspy.cache.memory_cache) == before
            assert server.num_requests == 1
            memory = Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)
            monkeypatch.setattr(dspy, "cache", memory)
            assert self.asked(lm) == self.asked(lm) == first
            assert server.num_requests == 2

    @pytest.mark.parametrize("status", [400, 403])
    def test_rejected_requests(self, route, status):
        requests = LogprobRequests()
        with provider(status) as server:
            lm = lm_of(server, route)
            for _ in range(3):
                assert self.asked(lm, requests) == []
        assert requests.reason == f"{lm.model} rejects requests for log-probabilities"
        assert server.num_requests == 4


RATINGS = [str(i) for i in range(1, 11)]


class TestFromAlternatives:
    @pytest.mark.parametrize(
        ("labels", "first", "after", "expected"),
        [
            (["yes", "no"], {" yes": 0.5, " n": 0.3, " mixed": 0.1}, {}, [0.5, 0.3]),
            (["yes", "no"], {" yes": 0.5, " Yes": 0.1, '"yes': 0.05, " no": 0.2}, {}, [0.65, 0.2]),
            (["yes", "no"], {" yesterday": 0.5, " yes": 0.2, " yes.": 0.1, " no": 0.1}, {}, [0.3, 0.1]),
            (["US", "us"], {"US": 0.4, "us": 0.3}, {}, [0.4, 0.3]),
            (["negative", "neutral", "positive"], {" ne": 0.6, " positive": 0.4}, {}, [0.3, 0.3, 0.4]),
            (["A", "A+", "B"], {" A": 0.4, "A": 0.2, " A+": 0.2, " B": 0.1}, {}, [0.6, 0.2, 0.1]),
            (["C", "C++"], {" C++": 0.6, " C": 0.3}, {" C++": {"\n": 1.0}}, [0.3, 0.6]),
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
            (["yes", "no", "not sure"], {"yes": 0.5, "no": 0.44, "not": 0.05}, {}, [0.5, 0.44, 0.05]),
            (
                ["number", "number theory"],
                {"": 0.9, " number": 0.1},  # In llama.cpp, an empty token marks the end of the text.
                {" number": {"": 0.9, " theory": 0.1}},
                [0.09, 0.01],
            ),
        ],
    )
    def test_with_and_without_later_tokens(self, labels, first, after, expected):
        after = {text: tokens(alternatives) for text, alternatives in {"": first, **after}.items()}
        np.testing.assert_allclose(from_alternatives(after, labels), expected)

    @given(st.data())
    def test_is_exact_if_every_token_is_known(self, data):
        """A label's exact probability is the product of the probabilities of its letters and its end."""
        labels = data.draw(
            st.lists(st.text("abc", min_size=1, max_size=4), min_size=2, max_size=6, unique=True)
        )
        beginnings = set()
        for label in labels:
            beginnings |= {label[:i] for i in range(len(label) + 1)}
        after = {}
        for text in beginnings:
            drawn = data.draw(st.lists(st.integers(1, 9), min_size=4, max_size=4))
            after[text] = tokens({t: n / sum(drawn) for t, n in zip("abc\n", drawn, strict=True)})
        exact = []
        for label in labels:
            letters = enumerate(label + "\n")
            logs = [after[label[:i]][letter] for i, letter in letters]
            exact.append(math.prod(map(math.exp, logs)))
        probabilities = from_alternatives(after, labels)
        # If only one label remains possible, each of its remaining letters gets a probability of 1.
        assert np.all(probabilities >= np.array(exact) - 1e-9)
        assert probabilities.sum() <= 1 + 1e-9


@pytest.mark.parametrize(
    ("reply", "labels", "answered", "name", "position"),
    [
        ("[[| ##| mood| ##| ]]\n|positive|\n\n|[[ ## completed ## ]]", "positive negative", 0, "mood", 5),
        # The replies in the following rows contain: no parsable label, labels in the reasoning (2 rows), JSON (2 rows),
        # labels inside words, no label, a label after the answer, a label that is also a word of the format,
        # another word as the answer, and the field's name and the label in a later field (4 rows).
        ("It| is| negative| or| positive", "positive negative", None, "label", 2),
        ("not| positive| at| all|\n\n|negative|,| not| positive", "positive negative", 1, "label", 5),
        ("[[ ## why ## ]]\na label: |no|, or so|\n\n[[ ## label ## ]]\n|no", "yes no", 1, "label", 4),
        ('{"|label|": "|no|"}', "yes no", 1, "label", 3),
        ('{"label"|: "no"}', "yes no", 1, "label", 1),
        ("nothing| now| no", "yes no", None, "label", 2),
        ("I| cannot", "yes no", None, "label", 0),
        ("[[ ## answer ## ]]\n|yes|\n\n[[ ## why ## ]]\n|the answer is |yes", "yes no", 0, "answer", 1),
        ("[[ ## status ## ]]\n|completed|\n\n[[ ## completed ## ]]", "completed pending", 0, "status", 1),
        ("[[ ## label ## ]]\n|perhaps|\n\n", "yes no", None, "label", 1),
        ("[[ ## label ## ]]\n|yes|\n\n[[ ## why ## ]]\n|Label |yes| fits", "yes no", 0, "label", 1),
        ('{"label": "|yes|", "why": "label |yes| fits"}', "yes no", 0, "label", 1),
        ("<label>|yes|</label><why>label |yes| fits", "yes no", 0, "label", 1),
        ("Label: |yes|\nWhy: label |yes| fits", "yes no", 0, "label", 1),
        ("<label>|perhaps|</label>", "yes no", None, "label", 1),
        # A reply that continues after the answer. Adapters ignore a field that is repeated.
        (
            "[[ ## label ## ]]\n|yes|\n\n[[ ## completed ## ]]\n[[ ## label ## ]]\n|yes",
            "yes no",
            0,
            "label",
            1,
        ),
    ],
)
def test_label_position(reply, labels, answered, name, position):
    labels = labels.split()
    label = None if answered is None else labels[answered]
    assert label_position(reply.split("|"), labels, label, name=name) == position


@pytest.mark.parametrize("outputs", ["label, reason", "reason, label"])
def test_plain_text_replies_may_mention_the_label_in_another_field(outputs):
    """The alternatives differ by position, so the probabilities show which mention was read."""
    tokens = [
        {" positive": 0.6, " negative": 0.4},
        "\nReason: It is",
        {" positive": 0.9, " negative": 0.1},
        ".",
    ]
    if outputs == "reason, label":
        tokens = [
            " It is",
            {" positive": 0.9, " negative": 0.1},
            "\nLabel:",
            {" positive": 0.6, " negative": 0.4},
        ]
    signature = dspy.Signature(f"text -> {outputs}").with_updated_fields("label", type_=KIND)
    _, (reading,) = asked(Scripted(*tokens), PlainTextAdapter(), program=dspy.Predict(signature))
    assert probabilities(reading) == pytest.approx([0.4, 0.6])


def test_a_title_that_contains_a_label_is_not_the_answer():
    tokens = ["Is Positive:", {" positive": 0.6, " negative": 0.4}]
    program = classifier()
    program.signature = program.signature.with_updated_fields("label", prefix="Is Positive:")
    _, (reading,) = asked(Scripted(*tokens), PlainTextAdapter(), program=program)
    assert probabilities(reading) == pytest.approx([0.4, 0.6])

"""Fake language models whose answers depend on the demos and their order.

The models read the prompts that DSPy sends in its chat format, with ``[[ ## field ## ]]`` headers, and answer in
the same format. Adapters, parsing and errors are therefore DSPy's own.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15
from dspy.clients.provider import Provider

FIELD = re.compile(r"\[\[ ## (\w+) ## \]\]\n(.*?)(?=\n\n\[\[ ## |\n\nRespond with|\Z)", re.S)
CHILDREN = multiprocessing.get_context("forkserver")
"""A context whose child processes start with all slow modules imported."""
CHILDREN.set_forkserver_preload(["dspy", "litellm", "torch", "plr_dspy.optimizer.fewshot"])

WANTED = re.compile(r"`\[\[ ## (\w+) ## \]\]`")


def order_share(system: str, demos: list[str], asked: str) -> float:
    """Return a share that is higher if more pairs of demos are in ascending order of their digests."""
    return (0.1 + 0.8 * ascending_share(list(map(digest, demos)))) / 0.9


class OrderSensitiveEngine:
    """An engine that answers a share of the questions correctly, and all others with "wrong".

    Args:
        answers: The correct answers, keyed by question.
        share: Returns this share, given the system message, the texts of the demos and the input's
            text. By default, it depends on the demos' order.
        tokens: Returns token counts that replace the default counts, given the request.
        at: Functions to run when calls begin, keyed by call index.
        mumbles: Returns whether the reply to a conversation is unparsable.

    Attributes:
        requests: Number of requests per conversation.
    """

    def __init__(
        self,
        answers: dict[str, str],
        *,
        share: Any = order_share,
        tokens: Any = lambda request: {},
        at: Any = None,
        mumbles: Any = lambda t: False,
    ) -> None:
        self.answers = answers
        self.share = share
        self.tokens = tokens
        self.at = dict(at or {})
        self.mumbles = mumbles
        self.requests: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Any:
        texts = [message.text or "" for message in request.messages]
        system = request.system if isinstance(request.system, str) else ""
        tokens = self.tokens(request)
        with self._lock:
            number = self.num_calls
            self.requests[tuple(texts)] += 1
        if number in self.at:
            self.at[number]()
        said = "Well, let me see ..." if self.mumbles(texts) else self.answer(system, texts)
        response = chat_response(said, prompt_tokens=sum(map(len, texts)) // 4)
        object.__setattr__(response, "usage", replace(response.usage, **tokens))
        return response

    def answer(self, system: str, texts: list[str]) -> str:
        """Return the answer to a conversation.

        Args:
            system: The system message.
            texts: All other messages.
        """
        values = [value.strip() for _, value in FIELD.findall(texts[-1])]
        known = [self.answers[value] for value in values if value in self.answers]
        gold = known[0] if known else "unknown"
        is_right = digest(" ".join(values)) < self.share(system, texts[:-1:2], texts[-1])
        return self.formatted(system, texts, gold if is_right else "wrong")

    @staticmethod
    def formatted(system: str, texts: list[str], answer: str) -> str:
        outputs = system.split("Your output fields are:")[-1]
        declared = re.findall(r"`(\w+)`", outputs.split("All interactions")[0])
        wanted = [name for name in WANTED.findall(texts[-1]) if name != "completed"] or declared
        fixed = {
            "reasoning": "because",
            "next_thought": "done",
            "next_tool_name": "finish",
            "next_tool_args": "{}",
        }
        fields = [f"[[ ## {name} ## ]]\n{fixed.get(name, answer)}" for name in wanted]
        body = "\n\n".join(fields)
        return f"{body}\n\n[[ ## completed ## ]]"

    @property
    def num_calls(self) -> int:
        return sum(self.requests.values())


def ascending_share(numbers: list[float]) -> float:
    """Return the share of number pairs in ascending order, or 0.5 if there are no pairs."""
    pairs = list(itertools.combinations(numbers, 2))
    if not pairs:
        return 0.5
    return sum(first < second for first, second in pairs) / len(pairs)


def digest(text: str) -> float:
    """Return a number in [0, 1) that depends only on the text."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 16**8


def chat_response(
    text: str, *, prompt_tokens: int = 10, logprobs: Any = None, finish_reason: str = "stop"
) -> Any:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": logprobs}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 5}
    usage["total_tokens"] = prompt_tokens + 5
    reply = {"id": "fake", "model": "fake", "choices": [choice], "usage": usage}
    return lm15.response_from_openai_chat(reply)


def request_messages(request: Any) -> list[dict[str, str]]:
    """Return the messages of a request, starting with the system message."""
    messages = [{"role": "system", "content": request.system}]
    return messages + [{"role": message.role, "content": message.text} for message in request.messages]


def prompt_tokens(request: Any) -> dict[str, int]:
    """Count the tokens in a request's messages as estimates do."""
    import litellm

    return {"input_tokens": litellm.token_counter("gpt-4o", messages=request_messages(request))}


def set_price(patch: Any, model: str, prompt: float, completion: float | None = None, **more: Any) -> None:
    """Set the prices of a model in dollars per token. By default, all tokens have the same price."""
    import litellm

    entry = {
        "input_cost_per_token": prompt,
        "output_cost_per_token": prompt if completion is None else completion,
        "litellm_provider": "fake",
        **more,
    }
    patch.setitem(litellm.model_cost, model, entry)


def logprobs_of(tokens: list[dict[str, float]]) -> dict[str, Any]:
    """Return the log-probabilities of a reply that has the likeliest token at each position."""

    content = []
    for top in tokens:
        likely = []
        for token, probability in top.items():
            logprob = math.log(probability) if probability > 0 else -9999.0
            likely.append({"token": token, "logprob": logprob})
        said = max(likely, key=lambda entry: entry["logprob"])
        content.append({**said, "top_logprobs": likely})
    return {"content": content}


def questions(count: int, *, classes: int = 3) -> list[dspy.Example]:
    examples = []
    for i in range(count):
        example = dspy.Example(question=f"question {i}", answer=f"answer {i % classes}")
        examples.append(example.with_inputs("question"))
    return examples


def student(demos: Any = 6, signature: str = "question -> answer", **config: Any) -> dspy.Predict:
    """Return a predictor with `demos`. If `demos` is a number, show that many questions as demos."""
    program = dspy.Predict(signature, **config)
    program.demos = questions(demos) if isinstance(demos, int) else list(demos)
    return program


class ScriptedEngine:
    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []

    def complete(self, request: Any) -> Any:
        self.requests.append(request)
        return chat_response(self.answers.pop(0))


class WithoutForward(dspy.Module):
    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.answer = answer or student()


class Wrapped(WithoutForward):
    def forward(self, question):  # type: ignore[no-untyped-def]
        return self.answer(question=question)


class OnlyAsync(WithoutForward):
    async def aforward(self, question):  # type: ignore[no-untyped-def]
        return await self.answer.acall(question=question)


class Program(dspy.Module):
    def __init__(self, run: Any = None, **parts: Any) -> None:
        super().__init__()
        vars(self).update(parts, run=run)

    def forward(self, *arguments: Any, **inputs: Any) -> Any:
        return self.run(self, *arguments, **inputs)


def two_predictors() -> Program:
    """Return a program whose second predictor uses the first predictor's hint."""

    def in_turn(self, question):  # type: ignore[no-untyped-def]
        hint = self.hint(question=question).hint
        return self.answer(question=question, hint=hint)

    hint = dspy.Predict("question -> hint")
    answer = dspy.ChainOfThought("question, hint -> answer")
    return Program(in_turn, hint=hint, answer=answer)


class CopyingEngine(OrderSensitiveEngine):
    """An engine that copies the answer of the first demo whose question is like the input's question.

    By default, the two questions must be equal, apart from case and whitespace.

    Attributes:
        copied: Number of calls in which a demo had the same question as the input.
        shown: The questions of the demos in each call.
    """

    def __init__(self, like: Any = str.__eq__, **options: Any) -> None:
        super().__init__({}, **options)
        self.like = like
        self.copied = 0
        self.shown = list[list[str]]()

    def answer(self, system: str, texts: list[str]) -> str:
        asked = _question_of(texts[-1])
        demos = list(map(_question_of, texts[:-1:2]))
        with self._lock:
            self.shown.append(demos)
            self.copied += asked in demos
        for demo, reply in zip(demos, texts[1:-1:2], strict=True):
            if self.like(demo, asked):
                answer = _fields(reply)["answer"].strip()
                break
        else:
            answer = self.otherwise(asked)
        return self.formatted(system, texts, answer)

    def otherwise(self, asked: str) -> str:
        return "wrong"


def _fields(text: str) -> dict[str, str]:
    return dict(FIELD.findall(text))


def _question_of(text: str) -> str:
    return " ".join(_fields(text)["question"].split()).casefold()


def failure() -> None:
    """Raise the error of a server that is down."""
    raise ConnectionError("down")


def interrupt() -> None:
    """Act like a user who presses Ctrl-C during a call."""
    raise KeyboardInterrupt


def engine_for(examples: list[dspy.Example], **options: Any) -> OrderSensitiveEngine:
    answers = {example.question: example.answer for example in examples}
    return OrderSensitiveEngine(answers, **options)


def lm_of(engine: Any, model: str = "fake/order-sensitive", **options: Any) -> dspy.LM:
    options = {"async_engine": Async(engine), "cache": False, "num_retries": 0, **options}
    return dspy.LM(model, engine=engine, **options)


class Async:
    def __init__(self, engine: Any) -> None:
        self.engine = engine

    async def complete(self, request: Any) -> Any:
        return self.engine.complete(request)


@contextmanager
def using(engine: Any, model: str = "fake/order-sensitive", **options: Any) -> Iterator[Any]:
    """Use an LM with this engine, without DSPy's fallback to JSON."""
    adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
    with dspy.context(lm=lm_of(engine, model, **options), adapter=adapter):
        yield engine


def fake_lm(examples: list[dspy.Example]) -> tuple[dspy.LM, OrderSensitiveEngine]:
    """Return an LM that can be fine-tuned, and its engine."""
    engine = engine_for(examples)
    options = {"engine": engine, "cache": False, "provider": FineTuning()}
    return dspy.LM("fake/order-sensitive", **options), engine


class FineTuning(Provider):
    """A provider whose fine-tuned models have new names but give the same answers."""

    def __init__(self) -> None:
        super().__init__()
        self.finetunable = True

    def finetune(  # type: ignore[override]
        self, job: Any, model: str, train_data: Any, train_data_format: Any, train_kwargs: Any = None
    ) -> str:
        return f"{model}-tuned"


def exact_match(example: dspy.Example, prediction: Any, trace: Any = None) -> bool:
    return bool(example.answer == prediction.answer)


def scored(scorer: Any, orderings: Any, examples: Any) -> list[float]:
    """Return each ordering's mean score on the examples that at least one ordering answered."""
    _, rows = scorer.table(orderings, examples)
    return [sum(row) / len(row) for row in rows]


def printed_with_other_hashes(code: str, *arguments: str) -> str:
    """Return the output of code in a process whose hash seed differs from this process's seed."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    folders = map(str, [Path(__file__).parent, *Path(__file__).parent.iterdir()])
    environment = {
        **os.environ,
        "PYTHONHASHSEED": seed,
        "PYTHONPATH": os.pathsep.join([*folders, *sys.path]),
    }
    return subprocess.check_output([sys.executable, "-c", code, *arguments], env=environment, text=True)


class LabelEngine:
    """An engine that answers with labels, and returns log-probabilities of a few tokens, as OpenAI does.

    Args:
        labels: The labels.
        probabilities: Returns label probabilities, given the demos' texts in order and the input's text.
        logprobs: Whether replies have log-probabilities if requested.
        refusal: Exception to raise if a request asks for log-probabilities.

    Attributes:
        prompts: The texts of each request, in the order of requests.
        asked: Number of log-probabilities per token that each request asked for, or None.
        at: Functions to run when calls begin, keyed by call index.
        silent: Indices of calls whose replies have no log-probabilities.
        mumbles: Returns whether the reply contains no label, given the demos' texts and the input's.
        written: How often the engine wrote each text as a new input.
    """

    def __init__(
        self, labels: list[str], probabilities: Any, *, logprobs: bool = True, refusal: Any = None
    ) -> None:
        self.labels = labels
        self.probabilities = probabilities
        self.logprobs = logprobs
        self.refusal = refusal
        self.prompt_tokens = 440
        self.at: dict[int, Any] = {}
        self.mumbles: Any = lambda demos, text: False
        self.silent: set[int] = set()
        self.prompts: list[tuple[str, ...]] = []
        self.asked: list[int | None] = []
        self.written: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def requests(self) -> int:
        return len(self.prompts)

    def lm(self, model: str = "fake/x", **options: Any) -> dspy.LM:
        return lm_of(self, model, **options)

    def complete(self, request: Any) -> Any:
        texts = tuple(message.text or "" for message in request.messages)
        asked = request.config.logprobs
        with self._lock:
            count = self.requests
            self.prompts.append(texts)
            self.asked.append(asked)
        if count in self.at:
            self.at[count]()
        if self.refusal is not None and asked is not None:
            raise self.refusal
        wanted = [name for name in WANTED.findall(texts[-1]) if name != "completed"]
        examples = _fields(texts[-1]).get("examples")
        tops = [{self.write(examples.strip(), wanted): 1.0}] if examples else self.tops(texts, wanted)
        said = "".join(max(top, key=top.__getitem__) for top in tops)
        logprobs = None
        if self.logprobs and asked is not None and count not in self.silent:
            logprobs = logprobs_of(tops)
        return chat_response(said, prompt_tokens=self.prompt_tokens, logprobs=logprobs)

    def tops(self, texts: tuple[str, ...], wanted: list[str]) -> list[dict[str, float]]:
        """Return the token probabilities at each position of a reply whose last field is the label."""
        *others, last = wanted
        p = zip(self.labels, self.probabilities(*self.shown(texts)), strict=True)
        before = [{f"[[ ## {name} ## ]]\nbecause\n\n": 1.0} for name in others]
        label = {label: share for label, share in p if share > 0}
        if self.mumbles(*self.shown(texts)):
            label = {"maybe": 1.0}
        header = {f"[[ ## {last} ## ]]\n": 1.0}
        footer = {"\n\n[[ ## completed ## ]]": 1.0}
        return [*before, header, label, footer]

    @staticmethod
    def shown(texts: tuple[str, ...]) -> tuple[list[str], str]:
        shown = [*texts[:-1:2], texts[-1]]
        *demos, text = (FIELD.findall(text)[0][1].strip() for text in shown)
        return demos, text

    def write(self, examples: str, wanted: list[str]) -> str:
        text = f"made up {int(digest(examples) * 6)}"
        with self._lock:
            self.written[text] += 1
        fields = [f"[[ ## {name} ## ]]\n{text}" for name in wanted]
        return "\n\n".join([*fields, "[[ ## completed ## ]]"])


class PlainLabels(LabelEngine):
    """An engine that answers plain prompts with a label that depends on the whole prompt."""

    def __init__(self, name: str = "", *, lean: float = 0.0) -> None:
        super().__init__([], lambda prompt: (1.0 - lean) * digest(f"{name}{prompt}"))

    def tops(self, texts: tuple[str, ...], wanted: list[str]) -> list[dict[str, float]]:
        share = self.probabilities(texts[-1])
        return [{" negative": share, " positive": 1.0 - share}]


class ProposingEngine:
    """A prompt model that proposes the given texts in turn.

    Attributes:
        texts: Instructions to propose before the search.
        revise: Returns an instruction to propose from failures, given the conversation. By default,
            it returns the first text.
        at: Functions to run when calls begin, keyed by call index.
        tokens: As in `OrderSensitiveEngine`.
        prompts: The conversations so far.
    """

    def __init__(
        self, *texts: str, at: Any = None, revise: Any = None, tokens: Any = lambda request: {}
    ) -> None:
        self.texts = texts
        self.tokens = tokens
        self.revise = revise or (lambda content: self.texts[0])
        self.at = dict(at or {})
        self.prompts: list[str] = []
        self.proposed = 0

    def complete(self, request: Any) -> Any:
        content = "\n".join(message.text or "" for message in request.messages)
        number = len(self.prompts)
        self.prompts.append(content)
        if number in self.at:
            self.at[number]()
        (field,) = re.findall(r"Respond with.*?`\[\[ ## (\w+) ## \]\]`", content)
        reply = f"a {field}"
        if field == "proposed_instruction":
            reply = self.texts[self.proposed % len(self.texts)]
            self.proposed += 1
        elif field == "new_instruction":
            reply = self.revise(content)
        text = f"[[ ## {field} ## ]]\n{reply}\n\n[[ ## completed ## ]]"
        response = chat_response(text, prompt_tokens=100)
        object.__setattr__(response, "usage", replace(response.usage, **self.tokens(request)))
        return response

"""A language model whose answers depend on the order of the demos, in place of a paid API.

It reads the prompt that DSPy really sent (any chat-format prompt with ``[[ ## field ## ]]`` headers)
and answers in the same format, so that adapters, parsing and errors are DSPy's own.
"""

from __future__ import annotations

import hashlib
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
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15
from dspy.clients.provider import Provider

FIELD = re.compile(r"\[\[ ## (\w+) ## \]\]\n(.*?)(?=\n\n\[\[ ## |\n\nRespond with|\Z)", re.S)
CHILDREN = multiprocessing.get_context("forkserver")
"""Child processes that need not import what takes seconds."""
CHILDREN.set_forkserver_preload(["dspy", "litellm", "torch", "plr_dspy.optimizer.fewshot"])

WANTED = re.compile(r"`\[\[ ## (\w+) ## \]\]`")


class OrderSensitiveEngine:
    """Right more often the more the demos are in ascending order of their text's digest: the prompt alone decides.

    Of `answers` by question; `at` is what is done at the beginning of calls, by number, and `mumbles` tells of which
    conversations the reply follows no format. `requests` counts the conversations.
    """

    def __init__(self, answers: dict[str, str], *, at: Any = None, mumbles: Any = lambda t: False) -> None:
        self.answers = answers
        self.at = dict(at or {})
        self.mumbles = mumbles
        self.requests: Counter[tuple[str, ...]] = Counter()
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Any:
        texts = [message.text or "" for message in request.messages]
        system = request.system if isinstance(request.system, str) else ""
        with self._lock:
            number = self.num_calls
            self.requests[tuple(texts)] += 1
        if number in self.at:
            self.at[number]()
        said = "Well, let me see ..." if self.mumbles(texts) else self.answer(system, texts)
        return chat_response(said, prompt_tokens=sum(map(len, texts)) // 4)

    def answer(self, system: str, texts: list[str]) -> str:
        """The answer to a conversation, of which the system message is not part."""
        demos = [digest(text) for text in texts[:-1:2]]
        pairs = [(a, b) for i, a in enumerate(demos) for b in demos[i + 1 :]]
        sorted_share = sum(a < b for a, b in pairs) / len(pairs) if pairs else 0.5
        values = [value.strip() for _, value in FIELD.findall(texts[-1])]
        gold = next((self.answers[value] for value in values if value in self.answers), "unknown")
        difficulty = digest(" ".join(values)) * 0.9
        answer = gold if difficulty < 0.1 + 0.8 * sorted_share else "wrong"
        return self.formatted(system, texts, answer)

    @staticmethod
    def formatted(system: str, texts: list[str], answer: str) -> str:
        declared = re.findall(r"`(\w+)`", system.split("Your output fields are:")[-1].split("All interactions")[0])
        wanted = [name for name in WANTED.findall(texts[-1]) if name != "completed"] or declared
        fixed = {"reasoning": "because", "next_thought": "done", "next_tool_name": "finish", "next_tool_args": "{}"}
        body = "\n\n".join(f"[[ ## {name} ## ]]\n{fixed.get(name, answer)}" for name in wanted)
        return f"{body}\n\n[[ ## completed ## ]]"

    @property
    def num_calls(self) -> int:
        return sum(self.requests.values())


def digest(text: str) -> float:
    """A number in [0, 1) that only the text decides."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 16**8


def chat_response(text: str, *, prompt_tokens: int = 10, logprobs: Any = None) -> Any:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 5, "total_tokens": prompt_tokens + 5}
    reply = {"id": "fake", "model": "fake", "choices": [choice], "usage": usage}
    return lm15.response_from_openai_chat(reply)


def logprobs_of(tokens: list[dict[str, float]]) -> dict[str, Any]:
    """Log-probabilities of a chat reply: at each place the likeliest of some tokens was said."""

    def told(token: str, p: float) -> dict[str, Any]:
        return {"token": token, "logprob": math.log(p) if p > 0 else -9999.0}

    said = [told(max(top, key=top.__getitem__), max(top.values())) for top in tokens]
    likely = [[told(token, p) for token, p in top.items()] for top in tokens]
    return {"content": [{**one, "top_logprobs": top} for one, top in zip(said, likely, strict=True)]}


def questions(count: int, *, classes: int = 3) -> list[dspy.Example]:
    pairs = [{"question": f"question {i}", "answer": f"answer {i % classes}"} for i in range(count)]
    return [dspy.Example(pair).with_inputs("question") for pair in pairs]


def student(demos: Any = 6, signature: str = "question -> answer", **config: Any) -> dspy.Predict:
    """A predictor that shows demos: these, or the first so many of `questions`."""
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
    """A program whose second predictor reads what the first one says."""
    in_turn = lambda self, question: self.answer(question=question, hint=self.hint(question=question).hint)  # noqa: E731
    parts = {"hint": dspy.Predict("question -> hint"), "answer": dspy.ChainOfThought("question, hint -> answer")}
    return Program(in_turn, **parts)


class CopyingEngine(OrderSensitiveEngine):
    """Knows nothing: it copies the answer of the first demo that asks something like the question, the same unless it
    is told otherwise, whatever the case and white space.

    Attributes:
        copied: How often a demo asked the same.
        shown: Of each call, the questions of the demos.
    """

    def __init__(self, like: Any = str.__eq__, **options: Any) -> None:
        super().__init__({}, **options)
        self.like = like
        self.copied = 0
        self.shown = list[list[str]]()

    def answer(self, system: str, texts: list[str]) -> str:
        asked, *demos = (" ".join(_fields(text)["question"].split()).casefold() for text in [texts[-1], *texts[:-1:2]])
        with self._lock:
            self.shown.append(demos)
            self.copied += asked in demos
        found = [text for demo, text in zip(demos, texts[1:-1:2], strict=True) if self.like(demo, asked)]
        return self.formatted(system, texts, _fields(found[0])["answer"].strip() if found else self.otherwise(asked))

    def otherwise(self, asked: str) -> str:
        return "wrong"


def _fields(text: str) -> dict[str, str]:
    return dict(FIELD.findall(text))


def failure() -> None:
    """What an engine does at a call: as a server that is down."""
    raise ConnectionError("down")


def interrupt() -> None:
    """What an engine does at a call: as where a user presses Ctrl-C."""
    raise KeyboardInterrupt


def engine_for(examples: list[dspy.Example], **options: Any) -> OrderSensitiveEngine:
    return OrderSensitiveEngine({example.question: example.answer for example in examples}, **options)


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
    """Such an LM is DSPy's, and a reply that cannot be read is not asked for again."""
    adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
    with dspy.context(lm=lm_of(engine, model, **options), adapter=adapter):
        yield engine


def fake_lm(examples: list[dspy.Example]) -> tuple[dspy.LM, OrderSensitiveEngine]:
    """An LM that knows the examples' answers and can be fine-tuned, and its engine."""
    engine = engine_for(examples)
    return dspy.LM("fake/order-sensitive", engine=engine, cache=False, provider=FineTuning()), engine


class FineTuning(Provider):
    """Takes training data; the model that comes of them has another name, and answers as before.

    Attributes:
        jobs: The training data of each job, a list of conversations, each a list of messages' contents.
    """

    def __init__(self) -> None:
        super().__init__()
        self.finetunable = True
        self.jobs: list[list[list[str]]] = []

    def finetune(  # type: ignore[override]
        self, job: Any, model: str, train_data: Any, train_data_format: Any, train_kwargs: Any = None
    ) -> str:
        self.jobs.append([[message["content"] for message in data["messages"]] for data in train_data])
        return f"{model}-tuned"


def exact_match(example: dspy.Example, prediction: Any, trace: Any = None) -> bool:
    return bool(example.answer == prediction.answer)


def scored(scorer: Any, orderings: Any, examples: Any) -> list[float]:
    """Mean score of each ordering on the examples that ran for any of them."""
    _, rows = scorer.table(orderings, examples)
    return [sum(row) / len(row) for row in rows]


def printed_whatever_the_hashes(code: str) -> str:
    """What code prints in new processes, which must not depend on how they hash strings."""
    folders = map(str, [Path(__file__).parent, *Path(__file__).parent.iterdir()])
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = sys.argv[1:]; {code}", *folders]
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    first, second = (subprocess.check_output(command, env=each, text=True) for each in environments)
    assert first == second
    return first


class LabelEngine:
    """Answers with a label whose probabilities only the order of the demos and the input decide.

    Chat replies tell those of a few tokens, as OpenAI's do. `probabilities` makes a distribution of the
    demos' texts, in their order, and the input's; `refusal` is raised where log-probabilities are asked for.

    Attributes:
        prompts, asked: Texts of each request in turn, and how many log-probabilities it asked for at each place.
        at, silent: What is done at the beginning of calls, by number; calls whose replies have no log-probabilities.
        mumbles: Tells of which demos and texts the reply is no label.
        written: Inputs that it was asked to write, and did: few, so that some come twice.
    """

    def __init__(self, labels: list[str], probabilities: Any, *, logprobs: bool = True, refusal: Any = None) -> None:
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
        told = logprobs_of(tops)
        told = told if self.logprobs and asked is not None and count not in self.silent else None
        return chat_response(said, prompt_tokens=self.prompt_tokens, logprobs=told)

    def tops(self, texts: tuple[str, ...], wanted: list[str]) -> list[dict[str, float]]:
        """The tokens of a reply, each with the probabilities of what might stand there; the label comes last."""
        *others, last = wanted
        p = zip(self.labels, self.probabilities(*self.shown(texts)), strict=True)
        before = [{f"[[ ## {name} ## ]]\nbecause\n\n": 1.0} for name in others]
        label = {label: share for label, share in p if share > 0}
        if self.mumbles(*self.shown(texts)):
            label = {"maybe": 1.0}
        return [*before, {f"[[ ## {last} ## ]]\n": 1.0}, label, {"\n\n[[ ## completed ## ]]": 1.0}]

    @staticmethod
    def shown(texts: tuple[str, ...]) -> tuple[list[str], str]:
        *demos, text = (FIELD.findall(text)[0][1].strip() for text in [*texts[:-1:2], texts[-1]])
        return demos, text

    def write(self, examples: str, wanted: list[str]) -> str:
        text = f"made up {int(digest(examples) * 6)}"
        with self._lock:
            self.written[text] += 1
        return "\n\n".join([*(f"[[ ## {name} ## ]]\n{text}" for name in wanted), "[[ ## completed ## ]]"])


class PlainLabels(LabelEngine):
    """Answers plain prompts with a label whose probability its name, its lean and the whole prompt decide."""

    def __init__(self, name: str = "", *, lean: float = 0.0) -> None:
        super().__init__([], lambda prompt: (1.0 - lean) * digest(f"{name}{prompt}"))

    def tops(self, texts: tuple[str, ...], wanted: list[str]) -> list[dict[str, float]]:
        share = self.probabilities(texts[-1])
        return [{" negative": share, " positive": 1.0 - share}]

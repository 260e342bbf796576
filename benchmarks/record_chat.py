"""A script that records a chat model's label log-probabilities in the prompts of `dspy.ChatAdapter`.

pip install torch transformers gguf accelerate
python benchmarks/record_chat.py --weights FILE.gguf --task trec --data-dir DATA --out benchmarks/recorded/chat/NAME.npz

Each test example is answered without demos, with its nearest demos, and with random sets of demos in random orders. All
demos come from `--pool` labeled examples. `--demos 8 4 2 --sets 12 8 8 --orders 3 1 1` means 12 sets of 8 demos in 3
orders each, 8 sets of 4 demos in 1 order, and 8 sets of 2 demos in 1 order.

The opening of each reply is supplied in the adapter's format. Otherwise, a small model may begin differently, mostly
in prompts without demos. The file records for each prompt whether the model itself would begin with this opening.

The file is written after each arrangement. If the command is interrupted, run it again to resume. With more sets,
orders or examples, the command extends the file. `levers.py` reads finished and unfinished files.
"""

import copy
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import dspy
import numpy as np
from command import options

from paper.tasks import CLASSIFICATION, Task
from plr_dspy.programs.splits import source_of
from plr_dspy.retrieval.nearest import NearestDemos, Pool
from quickstart import load_data

NO_DEMOS = "no demos"
NEAREST = "nearest"
RANDOM = "random"
BATCH_TOKENS = 4_096  # maximum tokens in a batch; larger batches are no faster
NUM_NEAREST = 16  # examples between two saves for nearest demos; without common prefixes, reading is slow
NONE = -1  # index that pads the rows of arrangements with fewer demos than others


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that this script uses."""

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool
    ) -> str: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


class Chat:
    """The prompts of a task, as tokens of a chat model.

    Attributes:
        opening: Text of a reply before the label, in the adapter's format.
        closing: Text that follows the label.
    """

    def __init__(self, task: Task, tokenizer: Tokenizer) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._adapter = task.adapter("chat")
        label = task.labels[0]
        demo = dspy.Example({task.input_field: "", task.output_field: label})
        reply = self.messages([demo], {task.input_field: ""})[-2]["content"]
        self.opening, _, self.closing = reply.rpartition(label)

    @property
    def opening_tokens(self) -> list[int]:
        """The tokens of the opening, which end each prompt."""
        text = self.text([], {self._task.input_field: ""})
        before = self._encode(text.removesuffix(self.opening))
        return self._encode(text)[len(before) :]

    def messages(self, demos: Sequence[dspy.Example], inputs: Mapping[str, str]) -> list[dict[str, str]]:
        """Return the messages that `dspy.Predict` sends."""
        return self._adapter.format(self._task.signature, list(demos), dict(inputs))

    def text(self, demos: Sequence[dspy.Example], inputs: Mapping[str, str]) -> str:
        """Return the text that the model reads before the label."""
        messages = self.messages(demos, inputs)
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text + self.opening

    def tokens(self, demos: Sequence[dspy.Example], inputs: Mapping[str, str]) -> list[int]:
        return self._encode(self.text(demos, inputs))

    def label_tokens(self) -> list[list[int]]:
        """Return the first token of each label if the first tokens all differ, else all tokens of each label.

        In the second case, include the token after the label, because one label may be the start of
        another.
        """
        text = self.text([], {self._task.input_field: ""})
        before = self._encode(text)
        answers = []
        for label in self._task.labels:
            tokens = self._encode(text + label + self.closing)
            if tokens[: len(before)] != before:
                raise SystemExit(
                    f"label {label!r} must begin with a new token; the tokenizer merges it with preceding text: use "
                    "another model or task"
                )
            without_closing = self._encode(text + label)
            answers.append(tokens[len(before) : len(without_closing) + 1])
        firsts = [answer[:1] for answer in answers]
        if len(set(map(tuple, firsts))) == len(firsts):
            return firsts
        return answers

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def shared_length(prompts: Sequence[Sequence[int]], num_own: int) -> int:
    """Return the length of the prompts' common prefix, excluding the last `num_own` tokens of each prompt."""
    length = min(map(len, prompts)) - num_own
    for place in range(length):
        if len({prompt[place] for prompt in prompts}) > 1:
            return place
    return length


@dataclass(frozen=True)
class Reading:
    """A model's answers to prompts that end with the opening of a reply.

    Attributes:
        log_probabilities: Log-probabilities of labels, ``[prompts, labels]``.
        is_own: Whether the model itself would begin its reply with the opening, ``[prompts]``.
    """

    log_probabilities: np.ndarray
    is_own: np.ndarray


class ChatModel:
    """A causal language model that reads the common prefix of prompts only once.

    Args:
        weights: A GGUF file; the model runs in bfloat16.
        threads: Number of CPU threads.

    Attributes:
        versions: Versions of the packages that run the model.
    """

    def __init__(self, weights: Path, threads: int) -> None:
        try:
            import torch
            import transformers
            from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        except ImportError as error:
            raise SystemExit(
                f"recording a chat model needs {error.name}. Run: pip install torch transformers gguf accelerate"
            ) from error
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        place = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
        self._torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(**place)
        self._model = AutoModelForCausalLM.from_pretrained(
            **place, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        ).eval()
        # Compute logits in float32: bfloat16 logits have steps of 0.1, so labels would often tie.
        self._head = self._model.get_output_embeddings().weight.float()

    def read(
        self, prompts: Sequence[list[int]], opening: list[int], answers: Sequence[list[int]]
    ) -> Reading:
        """Return the model's answers to prompts.

        Args:
            prompts: Tokens of each prompt, including the opening at its end.
            opening: Tokens of the opening.
            answers: Tokens to read for each label. If each label has one token, all labels are read at once.
        """
        num_shared = shared_length(prompts, num_own=len(opening) + 1)
        shared = self._cache(prompts[0][:num_shared])
        own = [prompt[num_shared:] for prompt in prompts]
        logs = np.zeros((len(prompts), len(answers)))
        is_own = np.zeros(len(prompts), dtype=bool)
        reads_all = all(len(answer) == 1 for answer in answers)
        firsts = [answer[0] for answer in answers]
        for label, answer in enumerate(answers[:1] if reads_all else answers):
            rows = [[*tokens, *answer[:-1]] for tokens in own]
            for row, ends in self._ends(shared, rows, len(opening) + len(answer)):
                of_opening, of_answer = np.split(ends, [len(opening)])
                is_own[row] = (of_opening.argmax(axis=1) == opening).all()
                if reads_all:
                    logs[row] = of_answer[0, firsts]
                else:
                    logs[row, label] = of_answer[np.arange(len(answer)), answer].sum()
        return Reading(logs, is_own)

    def _cache(self, tokens: Sequence[int]) -> Any:
        """Return the key-value cache of these tokens."""
        from transformers import DynamicCache

        cache = DynamicCache()
        if tokens:
            self._model.base_model(self._torch.tensor([tokens]), cache=cache, use_cache=True)
        return cache

    def _ends(
        self, shared: Any, rows: Sequence[list[int]], number: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each row's index and the next-token log-probabilities at its last `number` positions."""
        torch = self._torch
        for batch in batches(rows):
            longest = max(len(rows[row]) for row in batch)
            # Put the padding after the last token, so that no token attends to it.
            tokens = torch.tensor([rows[row] + [0] * (longest - len(rows[row])) for row in batch])
            cache = copy.deepcopy(shared)
            if cache.get_seq_length():
                cache.batch_repeat_interleave(len(batch))
            states = self._model.base_model(tokens, cache=cache, use_cache=True).last_hidden_state
            for row, state in zip(batch, states, strict=True):
                length = len(rows[row])
                logits = state[length - number : length].float() @ self._head.T
                yield row, torch.log_softmax(logits, dim=1).numpy()


def batches(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield batches with the indices of rows of similar lengths.

    With padding, a batch has at most `BATCH_TOKENS` tokens, unless it is a single longer row.
    """
    batch: list[int] = []
    for row in sorted(range(len(rows)), key=lambda row: len(rows[row])):
        if batch and (len(batch) + 1) * len(rows[row]) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


@dataclass(frozen=True)
class Arrangement:
    """The demos that are shown before an example.

    Attributes:
        kind: How the demos are chosen: `NO_DEMOS`, `NEAREST` or `RANDOM`.
        demos: Indices of the demos in the pool, in prompt order; empty unless `kind` is `RANDOM`.
        set: Index of the random set among the sets of equal size.
    """

    kind: str
    demos: tuple[int, ...] = ()
    set: int = NONE


def arrangements(
    demos: Sequence[int], sets: Sequence[int], orders: Sequence[int], *, num_pool: int, seed: int
) -> list[Arrangement]:
    """Return the arrangements to record, beginning with the most important.

    Args:
        demos: Numbers of demos in random arrangements.
        sets: Number of random sets to draw, for each value in `demos`.
        orders: Number of random orders of each set, for each value in `demos`.
        num_pool: Number of labeled examples.
        seed: Seed of the draws. Increasing `sets` or `orders` leaves earlier draws unchanged.
    """
    randoms = []
    for rank, (num_demos, num_sets, num_orders) in enumerate(zip(demos, sets, orders, strict=True)):
        for number in range(num_sets):
            rng = np.random.default_rng([seed, num_demos, number])
            members = rng.choice(num_pool, num_demos, replace=False)
            for order in range(num_orders):
                if order:
                    members = rng.permutation(members)
                randoms.append((order, rank, number, Arrangement(RANDOM, tuple(members.tolist()), number)))
    randoms.sort(key=lambda entry: entry[:3])
    plan = [Arrangement(NO_DEMOS), *(entry[-1] for entry in randoms)]
    plan.insert(1 + sets[0], Arrangement(NEAREST))
    return plan


@dataclass(frozen=True)
class DrawSize:
    """Numbers of examples to draw, and the seed.

    Attributes:
        pool: Number of labeled examples. Demos are drawn from them.
        examples: Number of test examples.
        nearest: Number of nearest demos of each test example.
    """

    pool: int
    examples: int
    nearest: int
    seed: int


class Draw:
    """The labeled examples and the test examples of a task.

    Attributes:
        pool_rows, test_rows: Indices of the examples in the lists from `paper.data.load`.
        nearest: Indices in the pool of the demos nearest to each test example, ending with the
            nearest, ``[examples, demos]``.
    """

    def __init__(self, name: str, data_dir: Path, size: DrawSize) -> None:
        data = load_data(name, data_dir)
        self.task = data.task
        self.pool_rows = np.random.default_rng([size.seed, 0]).permutation(len(data.train))[: size.pool]
        self.test_rows = np.random.default_rng([size.seed, 1]).permutation(len(data.test))[: size.examples]
        self.pool = [data.train[row] for row in self.pool_rows]
        self.test = [data.test[row] for row in self.test_rows]
        sources = [source_of(example.inputs()) for example in self.pool]
        retrieval = Pool(dspy.Predict(self.task.signature), self.pool, sources)
        nearest = NearestDemos(size.nearest)
        self.nearest = np.array([retrieval.shown(example.inputs(), nearest) for example in self.test])

    def labels_of(self, examples: Sequence[dspy.Example]) -> np.ndarray:
        """Return the indices of the correct labels of examples."""
        return np.array([self.task.labels.index(example[self.task.output_field]) for example in examples])

    def demos(self, arrangement: Arrangement, example: int) -> list[dspy.Example]:
        """Return the demos of an arrangement for a test example, in prompt order."""
        numbers = self.nearest[example] if arrangement.kind == NEAREST else arrangement.demos
        return [self.pool[number] for number in numbers]


class RecordFile:
    """A file with the log-probabilities of labels for each arrangement.

    Attributes:
        log_probabilities: Log-probabilities, ``[arrangements, examples, labels]``; NaN if missing.
        is_own: Whether the model itself would begin its reply with the opening,
            ``[arrangements, examples]``.
        prompt_tokens: Number of tokens in each prompt, ``[arrangements, examples]``.
        prefix_tokens: Number of tokens in the common prefix of an arrangement's prompts, ``[arrangements]``.
    """

    def __init__(
        self, path: Path, draw: Draw, plan: Sequence[Arrangement], about: Mapping[str, object]
    ) -> None:
        num_examples = len(draw.test)
        self.path = path
        self._draw = draw
        self._plan = plan
        self._about = about
        self.log_probabilities = np.full(
            (len(plan), num_examples, len(draw.task.labels)), np.nan, np.float16
        )
        self.is_own = np.zeros((len(plan), num_examples), bool)
        self.prompt_tokens = np.zeros((len(plan), num_examples), np.int16)
        self.prefix_tokens = np.zeros(len(plan), np.int16)
        if path.exists():
            self._resume()

    def _resume(self) -> None:
        """Load the answers that an earlier run recorded with the same model, task and examples."""
        known = np.load(self.path)
        about = json.loads(str(known["about"]))
        for name in ("task", "digest", "template", "seed", "pool", "nearest"):
            if about[name] != self._about[name]:
                difference = f"{name} {about[name]!r}; got {self._about[name]!r}"
                raise SystemExit(f"{self.path} was recorded with {difference}: pass another --out")
        num_examples = len(known["gold"])
        numbers = {arrangement: number for number, arrangement in enumerate(self._plan)}
        for old, arrangement in enumerate(read_plan(known)):
            table = known["logprobs"][old]
            if np.isnan(table).all():
                continue
            new = numbers.get(arrangement)
            if new is None or num_examples > len(self._draw.test):
                raise SystemExit(
                    f"{self.path} has answers that the options exclude: increase --sets, --orders or --examples, or "
                    "pass another --out"
                )
            self.log_probabilities[new, :num_examples] = table
            self.is_own[new, :num_examples] = known["is_own"][old]
            self.prompt_tokens[new, :num_examples] = known["prompt_tokens"][old]
            self.prefix_tokens[new] = known["prefix_tokens"][old]

    def missing(self, number: int) -> np.ndarray:
        """Return the indices of the examples whose answers are missing for an arrangement."""
        return np.flatnonzero(np.isnan(self.log_probabilities[number]).any(axis=1))

    def save(self) -> None:
        """Write the file atomically, so that an interrupt keeps the previous version."""
        draw = self._draw
        most = max(len(arrangement.demos) for arrangement in self._plan)
        demos = np.full((len(self._plan), most), NONE, np.int16)
        for number, arrangement in enumerate(self._plan):
            demos[number, : len(arrangement.demos)] = arrangement.demos
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part.npz")
        np.savez_compressed(
            beside,
            kinds=np.array([arrangement.kind for arrangement in self._plan]),
            sets=np.array([arrangement.set for arrangement in self._plan], np.int16),
            demos=demos,
            nearest=draw.nearest.astype(np.int16),
            logprobs=self.log_probabilities,
            is_own=self.is_own,
            gold=draw.labels_of(draw.test).astype(np.int8),
            labels=np.array(draw.task.labels),
            pool_labels=draw.labels_of(draw.pool).astype(np.int8),
            pool_rows=draw.pool_rows.astype(np.int16),
            test_rows=draw.test_rows.astype(np.int16),
            prompt_tokens=self.prompt_tokens,
            prefix_tokens=self.prefix_tokens,
            about=json.dumps(self._about),
        )
        os.replace(beside, self.path)


def read_plan(arrays: Mapping[str, np.ndarray]) -> list[Arrangement]:
    """Return the arrangements in a file."""
    plan = []
    for kind, demos, number in zip(arrays["kinds"], arrays["demos"], arrays["sets"], strict=True):
        shown = tuple(demos[demos != NONE].tolist())
        plan.append(Arrangement(str(kind), shown, int(number)))
    return plan


def record(file: RecordFile, plan: Sequence[Arrangement], draw: Draw, model: ChatModel) -> None:
    """Record the missing answers, one arrangement after another."""
    chat = Chat(draw.task, model.tokenizer)
    opening = chat.opening_tokens
    answers = chat.label_tokens()
    gold = draw.labels_of(draw.test)
    for number, arrangement in enumerate(plan):
        missing = file.missing(number)
        if not len(missing):
            continue
        began = time.perf_counter()
        prompts = []
        for example, row in enumerate(draw.test):
            prompts.append(chat.tokens(draw.demos(arrangement, example), row.inputs()))
        file.prompt_tokens[number] = list(map(len, prompts))
        file.prefix_tokens[number] = shared_length(prompts, num_own=len(opening) + 1)
        at_once = NUM_NEAREST if arrangement.kind == NEAREST else len(missing)
        for start in range(0, len(missing), at_once):
            examples = missing[start : start + at_once]
            reading = model.read([prompts[example] for example in examples], opening, answers)
            file.log_probabilities[number, examples] = reading.log_probabilities
            file.is_own[number, examples] = reading.is_own
            file.save()
        accuracy = (file.log_probabilities[number].argmax(axis=1) == gold).mean()
        seconds = time.perf_counter() - began
        text = (
            f"{arrangement.kind} {len(arrangement.demos)}, {len(missing)} examples, accuracy {accuracy:.3f}"
        )
        text += f", {file.is_own[number].mean():.0%} begin with the opening"
        print(f"{number + 1} of {len(plan)}: {text}, {seconds:.0f} s", file=sys.stderr, flush=True)


def main() -> None:
    args = options(
        __doc__,
        among={"task": CLASSIFICATION},
        weights=Path,
        model=str,
        task="trec",
        data_dir=Path,
        pool=100,
        examples=150,
        demos=[8, 4, 2],
        sets=[12, 8, 8],
        orders=[3, 1, 1],
        seed=0,
        threads=2,
        out=Path("runs/chat.npz"),
    )
    if args.weights is None:
        raise SystemExit("--weights is missing: pass a GGUF file")
    if not len(args.demos) == len(args.sets) == len(args.orders):
        counts = f"{len(args.demos)}, {len(args.sets)} and {len(args.orders)}"
        raise SystemExit(
            f"--demos, --sets and --orders must have the same number of values; got {counts}: add the missing values"
        )
    size = DrawSize(args.pool, args.examples, args.demos[0], args.seed)
    draw = Draw(args.task, args.data_dir, size)
    plan = arrangements(args.demos, args.sets, args.orders, num_pool=len(draw.pool), seed=args.seed)
    model = ChatModel(args.weights, args.threads)
    about = {
        "model": args.model or args.weights.stem,
        "digest": f"sha256 {hashlib.sha256(args.weights.read_bytes()).hexdigest()}",
        "template": f"sha256 {hashlib.sha256(model.tokenizer.chat_template.encode()).hexdigest()}",
        "task": args.task,
        "seed": args.seed,
        "pool": args.pool,
        "nearest": args.demos[0],
        "adapter": "dspy.ChatAdapter",
        "versions": {"dspy": version("dspy"), **model.versions},
        "command": " ".join(sys.argv),
    }
    record(RecordFile(args.out, draw, plan, about), plan, draw, model)
    print(f"wrote {args.out}: {len(plan)} arrangements x {len(draw.test)} examples")


if __name__ == "__main__":
    main()

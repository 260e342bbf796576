"""Estimates of how many tokens program calls will use."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, pstdev
from typing import Any

import dspy

from plr_dspy.dspy_compat import allows_none, model_of
from plr_dspy.labels.outputs import label_output
from plr_dspy.labels.trials import calls_model
from plr_dspy.metrics.confusion import SetMetric
from plr_dspy.optimizer.setup import UNKNOWN_ANSWER, CompileSetup
from plr_dspy.programs.attached_results import sub_modules
from plr_dspy.programs.copying import language_models
from plr_dspy.programs.instructions import PLACEHOLDER
from plr_dspy.programs.prefixes import MOST_EXAMPLES, NEW_SHARE, NEW_SHARE_WITH_LOGPROBS
from plr_dspy.programs.slots import PoolSlots, messages_of
from plr_dspy.programs.splits import Examples
from plr_dspy.programs.tokens import Messages, token_counter
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.scoring.budget import cost_of, price_of

SAMPLED_PROMPTS = 20  # maximum number of examples or demos in a rough average of token counts
SAMPLED_EXAMPLES = 200  # maximum number of examples to average over if those of the calls are unknown
UNKNOWN_FIELD = 100  # assumed number of tokens in a field that no example has, such as reasoning
PROPOSED_INSTRUCTION = 200  # assumed number of tokens in a proposed instruction
# A search may prefer long demos, so a prompt's demos are assumed to be longer than random demos:
# their total length is this number of standard deviations above the mean.
MORE_THAN_RANDOM = 2.0


@dataclass(frozen=True)
class CallSize:
    """The numbers of tokens in one or more calls. Sizes can be added, and multiplied by numbers.

    Attributes:
        usage: For each model, the counts "prompt_tokens", "completion_tokens" and "new_tokens".
            New tokens are prompt tokens that are not in a server's prefix cache.
    """

    usage: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __add__(self, other: CallSize) -> CallSize:
        usage: dict[str, Any] = defaultdict(Counter)
        for size in (self, other):
            for model, counts in size.usage.items():
                usage[model].update(counts)
        return CallSize(usage)

    def __mul__(self, number: float) -> CallSize:
        usage = {}
        for model, counts in self.usage.items():
            usage[model] = {kind: number * tokens for kind, tokens in counts.items()}
        return CallSize(usage)

    @property
    def prompt_tokens(self) -> float:
        return sum(counts.get("prompt_tokens", 0.0) for counts in self.usage.values())

    @property
    def new_tokens(self) -> float:
        return sum(counts.get("new_tokens", 0.0) for counts in self.usage.values())

    @property
    def cost(self) -> float | None:
        """The cost in US dollars, or None if a price is unknown."""
        return cost_of(self.usage)

    @property
    def cost_with_cache(self) -> float | None:
        """The cost in US dollars if only new prompt tokens are uncached; None if a price is unknown."""
        usage = {}
        for model, counts in self.usage.items():
            num_cached = max(0.0, counts.get("prompt_tokens", 0.0) - counts.get("new_tokens", 0.0))
            usage[model] = {**counts, "cached_tokens": num_cached}
        return cost_of(usage)


class CallSizes:
    """The estimated sizes of a compile run's program calls.

    A program is assumed to call each predictor once. Replies are assumed to be as long as the
    answers in demos or examples. A field that appears in neither is assumed to have
    `UNKNOWN_FIELD` tokens.

    Args:
        setup: The setup of the compile run.
        examples: The examples on which the calls are made. If None, they are unknown, and sizes
            are averaged over the first `SAMPLED_EXAMPLES` scored examples.
    """

    def __init__(self, setup: CompileSetup, *, examples: Examples | None = None) -> None:
        self._setup = setup
        self._knows_examples = examples is not None
        self._examples: Examples = examples or setup.scored_examples[:SAMPLED_EXAMPLES]
        self._count = token_counter()
        self._without_demos: dict[tuple[Any, ...], tuple[float, float]] = {}
        self._calls_per_look = max(1.0, setup.plan.program_calls / max(1, setup.plan.num_looks))
        # Maximum ratio of uncached demo tokens to example tokens, as in `LookSizes`. If the student
        # has a label output, replies are assumed to include log-probabilities.
        self._max_new_share = math.inf
        if isinstance(setup.slots, PoolSlots):
            has_labels = not isinstance(label_output(setup.program), str)
            self._max_new_share = NEW_SHARE_WITH_LOGPROBS if has_labels else NEW_SHARE

    def price(self, size: CallSize | None) -> float | None:
        """Return the cost in US dollars of calls of this size, or None if it is unknown.

        The cost is unknown if `size` is None, a price is missing, or the metric calls a language
        model.
        """
        # Check the metric last: this check calls the metric, and the metric may be slow.
        if size is None or size.cost is None or self.metric_calls_model:
            return None
        return size.cost

    @cached_property
    def metric_calls_model(self) -> bool:
        """Whether the metric calls a language model, for example as a judge."""
        metric = self._setup.options.metric
        if language_models(metric):
            return True
        return not isinstance(metric, SetMetric) and calls_model(
            metric, self._examples[0], self._setup.program
        )

    def extra_costs(self) -> dict[int, float]:
        """Return how much more a call costs on each long example than on an average example.

        The extra costs in US dollars are keyed by example index. They are computed from the
        student's prompts and the highest prompt price of all models. If prompts cannot be built,
        the result is empty.
        """
        setup = self._setup
        prices = [price_of(str(lm.model)) for lm in setup.models]
        price_per_token = max((price["prompt"] for price in prices if price is not None), default=0.0)
        lengths = [input_length(example) for example in setup.scored_examples]
        usual_length = fmean(map(input_length, self._examples))
        extra_costs = {}
        for index, example in enumerate(setup.scored_examples):
            if lengths[index] <= usual_length:  # Skip short examples, because counting tokens is slow.
                continue
            try:
                extra_tokens = self._extra_tokens(example)
            except Exception:  # If the adapter or litellm fails, lengths are unknown.
                return {}
            if extra_tokens > 0:
                extra_costs[index] = price_per_token * extra_tokens
        return extra_costs

    def _extra_tokens(self, example: dspy.Example) -> float:
        """Return how many more tokens the student's prompts have for this example than for an average one."""
        extra_tokens = 0.0
        for _, predictor in sub_modules(self._setup.program, dspy.Predict):
            usual, _ = self._tokens_without_demos(predictor)
            own, _ = self._tokens_on(predictor, example)
            extra_tokens += own - usual
        return extra_tokens

    def of_program(self, program: dspy.Module) -> CallSize | None:
        """Return the mean size of a program's calls, or None if its prompts cannot be built."""
        try:
            size = CallSize()
            for _, predictor in sub_modules(program, dspy.Predict):
                retrieved = self._retrieved_tokens(predictor)
                size += self._of_predictor(predictor, self._tokens_of(predictor), retrieved=retrieved)
        except Exception:  # If the adapter or litellm fails, the other figures are still useful.
            return None
        return size

    def of_arrangements(self) -> CallSize | None:
        """Return an upper estimate of the mean call size for arrangements of demos.

        If the search chooses demos, assume that all prompts show the longest instruction and the
        maximum number of demos. Assume that these demos are longer than almost any random draw, but
        within `max_demo_tokens`. Return None if prompts cannot be built.
        """
        slots = self._setup.slots
        if not isinstance(slots, PoolSlots):
            return self.of_program(slots.build(slots.space.identity))
        try:
            return self._of_pools(slots)
        except Exception:  # If the adapter or litellm fails, the other figures are still useful.
            return None

    def _of_pools(self, slots: PoolSlots) -> CallSize:
        demo_tokens = {}
        pools = {}
        for slot, (_, max_demos) in zip(slots.slots, slots.space.limits, strict=False):
            tokens = [pooled.tokens + unknown_tokens(pooled.demo) for pooled in slot.pool]
            demo_tokens[slot.predictor] = high_total(tokens, max_demos)
            pools[slot.predictor] = slot.demos
        limit = self._setup.options.max_demo_tokens
        total = sum(demo_tokens.values())
        share = 1.0 if limit is None else min(1.0, limit / max(1.0, total))
        program = self._setup.program
        names = {id(predictor): name for name, predictor in program.named_predictors()}
        size = CallSize()
        for _, predictor in sub_modules(program, dspy.Predict):
            name = names.get(id(predictor), "")
            if name not in pools:
                size += self._of_predictor(predictor, self._tokens_of(predictor))
                continue
            tokens_shown = share * demo_tokens[name] + self._longer_instruction(name)
            size += self._of_predictor(predictor, tokens_shown, demos=pools[name])
        return size

    def _of_predictor(
        self,
        predictor: dspy.Predict,
        demo_tokens: float,
        *,
        retrieved: float = 0.0,
        demos: Sequence[Any] | None = None,
    ) -> CallSize:
        """Return the mean size of a predictor's calls.

        Args:
            predictor: The predictor.
            demo_tokens: Number of tokens that fixed demos and a longer instruction add.
            retrieved: Mean number of tokens in the demos that are retrieved for an input.
            demos: Demos whose mean answer length is assumed for replies. None means the
                predictor's own demos.
        """
        instructed, question = self._tokens_without_demos(predictor)
        prompt = instructed + demo_tokens + retrieved
        # With a custom adapter, demos may even shorten a prompt.
        added_tokens = max(0.0, demo_tokens)
        most_new = max(self._max_new_share * question, added_tokens / MOST_EXAMPLES)
        new_demo_tokens = min(added_tokens / self._calls_per_look, most_new)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": self._answer_tokens(
                predictor, predictor.demos if demos is None else demos
            ),
            "new_tokens": min(prompt, question + new_demo_tokens + retrieved),
        }
        return CallSize({str(model_of(predictor).model): usage})

    def _tokens_without_demos(self, predictor: dspy.Predict) -> tuple[float, float]:
        """Return the mean token counts of a predictor's prompts without demos and of their last messages."""
        # Copies of a program share signatures and demos, so copies of a predictor have the same key.
        key = (predictor.signature, *map(id, predictor.demos[:1]))
        if key not in self._without_demos:
            tokens = [self._tokens_on(predictor, example) for example in self._examples]
            prompt_tokens, question_tokens = zip(*tokens, strict=True)
            self._without_demos[key] = fmean(prompt_tokens), fmean(question_tokens)
        return self._without_demos[key]

    def _tokens_on(self, predictor: dspy.Predict, example: dspy.Example) -> tuple[float, float]:
        """Return the token counts of an example's prompt without demos and of its last message."""
        messages = messages_of(predictor, [], inputs_of(predictor, example))
        unknown = UNKNOWN_FIELD * len(_unknown_inputs(predictor, example))
        return self._count(messages) + unknown, self._count(messages[-1:]) + unknown

    def _tokens_of(self, predictor: dspy.Predict) -> float:
        """Return the number of tokens in a predictor's own demos."""
        inputs = inputs_of(predictor, self._examples[0])
        with_demos = self._count(messages_of(predictor, predictor.demos, inputs))
        return with_demos - self._count(messages_of(predictor, [], inputs))

    def _retrieved_tokens(self, predictor: dspy.Predict) -> float:
        """Return the mean number of tokens in a predictor's retrieved demos, or 0 if it retrieves none.

        If the pool knows no example's inputs, return an upper estimate.
        """
        if not isinstance(predictor, RetrievingPredict):
            return 0.0
        pool = predictor.retrieval.pool
        tokens = [count + unknown_tokens(demo) for count, demo in zip(pool.tokens, pool.demos, strict=True)]
        totals = []
        for example in self._examples:
            inputs = inputs_of(predictor, example)
            if pool.knows(inputs):  # Other inputs would need a call to the embedder.
                shown = pool.shown(
                    inputs, predictor.retrieval.nearest, without=dict(example.inputs().items())
                )
                total = sum(tokens[number] for number in shown)
                if self._knows_examples:
                    # The pool's token counts omit the text that the adapter writes between demos.
                    demos = [*predictor.demos, *(pool.demos[number] for number in shown)]
                    with_demos = self._count(messages_of(predictor, demos, inputs))
                    total = with_demos - self._count(messages_of(predictor, predictor.demos, inputs))
                totals.append(total)
        return fmean(totals) if totals else high_total(tokens, predictor.retrieval.num_demos)

    def _answer_tokens(self, predictor: dspy.Predict, demos: Sequence[Any]) -> float:
        """Return the mean answer length in tokens of complete demos or, if there are none, of examples."""
        outputs = predictor.signature.output_fields
        complete = []
        for demo in demos:
            fields = answered_fields(predictor, demo)
            if not any(name not in fields or _is_unknown(fields[name]) for name in outputs):
                complete.append(demo)
        rows = (complete or self._examples)[:SAMPLED_PROMPTS]
        answers: Messages = []
        num_unknown = 0
        for source in rows:
            fields = answered_fields(predictor, source)
            # Adapters show None in a demo as a missing field, but a reply contains the word "None".
            row = {name: "None" if value is None else value for name, value in fields.items()}
            messages = [
                message for message in messages_of(predictor, [row]) if message["role"] == "assistant"
            ]
            if not messages:  # The adapter writes a single string instead of chat messages.
                text = "\n".join(str(row.get(name, "")) for name in outputs)
                messages = [{"role": "assistant", "content": text}]
            answers += messages
            num_unknown += sum(name not in row for name in outputs)
        return (self._count(answers) + UNKNOWN_FIELD * num_unknown) / len(rows)

    def _longer_instruction(self, name: str) -> float:
        """Return how many more tokens a predictor's longest instruction has than its original instruction."""
        instructions = self._setup.slots.alternatives.get(name, ())
        longest = max(extra_instruction_tokens(self._setup).get(name, [0]))
        if any(instruction.origin == PLACEHOLDER for instruction in instructions):
            longest = max(longest, PROPOSED_INSTRUCTION)
        return longest


def high_total(tokens: Sequence[float], number: int) -> float:
    """Return a total length that `number` randomly drawn demos rarely exceed, given each demo's length.

    The total is `MORE_THAN_RANDOM` standard deviations above the mean, but at most the total length
    of the `number` longest demos.
    """
    number = min(number, len(tokens))
    if not number:
        return 0.0
    share_left = (len(tokens) - number) / max(1, len(tokens) - 1)
    deviation = pstdev(tokens) * math.sqrt(number * share_left)
    largest = sum(sorted(tokens)[-number:])
    return min(largest, number * fmean(tokens) + MORE_THAN_RANDOM * deviation)


def answered_fields(predictor: dspy.Predict, row: Any) -> dict[str, Any]:
    """Return the fields of a demo or an example as a dict. Omit None unless it is a valid output value."""
    outputs = predictor.signature.output_fields
    fields = {}
    for name, value in row.items():
        if value is not None or (name in outputs and allows_none(outputs[name].annotation)):
            fields[name] = value
    return fields


def _is_unknown(value: Any) -> bool:
    """Return whether a value is the placeholder for an answer that the teacher has not given yet."""
    return isinstance(value, str) and value == UNKNOWN_ANSWER


def unknown_tokens(demo: Any) -> int:
    """Return the assumed number of tokens in the teacher's answers that a demo still lacks."""
    return UNKNOWN_FIELD * sum(_is_unknown(value) for _, value in demo.items())


def _unknown_inputs(predictor: dspy.Predict, example: dspy.Example) -> list[str]:
    """Return the names of required inputs that neither the example nor the predictor's first demo has."""
    sources: list[Any] = [example.inputs(), *predictor.demos[:1]]
    unknown = []
    for name, info in predictor.signature.input_fields.items():
        is_known = any(name in fields for fields in sources)
        if not is_known and not allows_none(info.annotation):
            unknown.append(name)
    return unknown


def input_length(example: dspy.Example) -> int:
    """Return the number of characters in an example's inputs."""
    return sum(len(str(value)) for _, value in example.inputs().items())


def inputs_of(predictor: dspy.Predict, example: dspy.Example) -> dict[str, Any]:
    """Return a predictor's inputs for an example.

    If the example lacks an input, use the value from the predictor's first demo or, failing that,
    an empty string.
    """
    sources: list[Any] = [example.inputs(), *predictor.demos[:1]]
    inputs = {}
    for name in predictor.signature.input_fields:
        inputs[name] = next((fields[name] for fields in sources if name in fields), "")
    return inputs


def extra_instruction_tokens(setup: CompileSetup) -> dict[str, list[int]]:
    """Return how many more tokens each instruction has than the predictor's own instruction.

    The result maps each predictor to a list of these differences. Instructions that have not been
    proposed yet are omitted.
    """
    num_tokens = token_counter()
    extra_tokens = {}
    for name, instructions in setup.slots.alternatives.items():
        texts = [instruction.text for instruction in instructions if instruction.origin != PLACEHOLDER]
        lengths = [num_tokens([{"role": "system", "content": text}]) for text in texts]
        extra_tokens[name] = [length - lengths[0] for length in lengths]
    return extra_tokens

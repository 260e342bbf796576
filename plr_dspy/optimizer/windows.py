"""The longest prompts that a compile run may build, compared with the models' context windows."""

import heapq
from collections.abc import Iterator, Sequence
from contextlib import suppress

import dspy

from plr_dspy.dspy_compat import model_of
from plr_dspy.optimizer.call_sizes import extra_instruction_tokens, inputs_of
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.slots import PoolSlots, WholeProgramSlots, messages_of
from plr_dspy.programs.tokens import token_counter
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.scoring.budget import window_of
from plr_dspy.scoring.causes import FEWER_DEMOS

# Number of examples whose tokens are counted: those with the longest inputs.
NUM_LONGEST = 5


def window_warning(setup: CompileSetup) -> str:
    """Return a warning if a prompt may exceed its model's context window, else an empty string."""
    with suppress(Exception):  # If the adapter or litellm fails, `compile` raises a clearer error later.
        return next(_warnings(setup), "")
    return ""


def _warnings(setup: CompileSetup) -> Iterator[str]:
    """Yield a warning for each predictor whose prompts may exceed the context window."""
    if not isinstance(setup.slots, WholeProgramSlots):
        extra_tokens = extra_instruction_tokens(setup)
        for name, predictor in setup.program.named_predictors():
            pooled = _most_pooled_tokens(setup, name) + max(extra_tokens.get(name, [0]))
            tokens = max(pooled, _own_demo_tokens(predictor), _most_retrieved_tokens(setup, name))
            yield from _warning(setup, predictor, tokens)
    for rival in setup.rivals:
        for predictor in rival.predictors:
            tokens = _own_demo_tokens(predictor)
            if isinstance(predictor, RetrievingPredict):
                tokens += predictor.retrieval.num_tokens
            yield from _warning(setup, predictor, tokens, program=f" of {rival.name!r}")


def _warning(
    setup: CompileSetup, predictor: dspy.Predict, more_tokens: int, *, program: str = ""
) -> Iterator[str]:
    """Yield a warning if a predictor's longest prompt may exceed the context window.

    Tokens are counted with GPT-4o's tokenizer. `more_tokens` is the number of tokens that
    demos and longer instructions add. `program` is empty, or a phrase that names a user's program.
    """
    model = str(getattr(model_of(predictor), "model", ""))
    window = window_of(model)
    if window is None:
        return
    named = zip(setup.scored_examples, setup.splits.names, strict=True)
    longest = heapq.nlargest(NUM_LONGEST, named, key=lambda pair: len(repr(pair[0].inputs())))
    sizes = []
    for example, name in longest:
        messages = messages_of(predictor, [], inputs_of(predictor, example))
        sizes.append((token_counter()(messages), name))
    size, name = max(sizes)
    tokens = size + more_tokens
    if tokens > window:
        yield (
            f"prompts{program} may have up to about {tokens:,} tokens, but the context window of {model} holds only "
            f"{window:,} tokens, and calls with longer prompts are scored as incorrect: shorten the inputs of "
            f"{name}, or {FEWER_DEMOS}"
        )


def _most_pooled_tokens(setup: CompileSetup, name: str) -> int:
    """Return the largest number of tokens that demos from a predictor's pool may have, or 0 without a pool."""
    slots = setup.slots
    if not isinstance(slots, PoolSlots):
        return 0
    for slot, (_, max_demos) in zip(slots.slots, slots.space.limits, strict=False):
        if slot.predictor == name:
            return _largest_total(setup, [pooled.tokens for pooled in slot.pool], max_demos)
    return 0


def _most_retrieved_tokens(setup: CompileSetup, name: str) -> int:
    """Return the largest number of tokens that retrieved demos may have, or 0 if none are retrieved."""
    slots = setup.slots
    if not isinstance(slots, RetrievalSlots) or name not in slots.retrieval_pools:
        return 0
    return _largest_total(setup, slots.retrieval_pools[name].tokens, setup.options.max_demos)


def _largest_total(setup: CompileSetup, tokens: Sequence[int], max_demos: int) -> int:
    """Return the largest number of tokens in `max_demos` demos that `max_demo_tokens` allows."""
    total = sum(heapq.nlargest(max_demos, tokens))
    limit: int | None = setup.options.max_demo_tokens
    return total if limit is None else min(total, limit)


def _own_demo_tokens(predictor: dspy.Predict) -> int:
    """Return the number of tokens in a predictor's own demos."""
    return token_counter()(messages_of(predictor, predictor.demos))

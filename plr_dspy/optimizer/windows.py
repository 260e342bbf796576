"""The longest prompts that a compile run may build, compared with the models' context windows."""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import dspy

from plr_dspy.dspy_compat import model_of
from plr_dspy.optimizer.call_sizes import extra_instruction_tokens, inputs_of
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.slots import PoolSlots, WholeProgramSlots, messages_of
from plr_dspy.programs.tokens import token_counter
from plr_dspy.retrieval.predict import RetrievingPredict
from plr_dspy.retrieval.slots import RetrievalSlots
from plr_dspy.scoring.budget import window_of
from plr_dspy.search.space import WITHOUT_DEMOS

# Number of examples whose tokens are counted. They are the examples with the longest inputs.
NUM_LONGEST = 5


@dataclass(frozen=True)
class LongPrompt:
    """The longest prompt of one kind that a predictor may get.

    Attributes:
        model, window: The predictor's model, and the model's maximum number of prompt tokens.
        tokens: Approximate number of tokens, counted with GPT-4o's tokenizer. Instructions and
            demo answers that do not exist yet are not counted.
        fix: Advice on how to keep prompts of this kind within the context window.
    """

    model: str
    window: int
    tokens: int
    fix: str

    def __str__(self) -> str:
        return (
            f"prompts may have up to about {self.tokens:,} tokens, but the context window of {self.model} holds only "
            f"{self.window:,} tokens, and calls with longer prompts count as incorrect answers: {self.fix}"
        )


def window_warning(setup: CompileSetup) -> str:
    """Return a warning if a prompt may exceed its model's context window, else an empty string."""
    prompts: list[LongPrompt] = []
    with suppress(Exception):  # If the adapter or litellm fails, `compile` raises a clearer error later.
        if not isinstance(setup.slots, WholeProgramSlots):
            prompts += _of_student(setup)
        prompts += _of_rivals(setup)
    excessive = [prompt for prompt in prompts if prompt.tokens > prompt.window]
    if not excessive:
        return ""
    return str(max(excessive, key=lambda prompt: prompt.tokens / prompt.window))


def _of_student(setup: CompileSetup) -> Iterator[LongPrompt]:
    """Yield the longest prompts of the student's predictors, one for each predictor and kind of demos."""
    for name, predictor in setup.program.named_predictors():
        model, window = _model_of(predictor)
        if window is None:
            continue
        without_demos, example = _longest_without_demos(setup, predictor)
        instructed = without_demos + max(extra_instruction_tokens(setup).get(name, [0]))
        if instructed > window:
            yield LongPrompt(
                model, window, instructed, f"shorten the instructions, or the inputs of {example}"
            )
            continue
        own_tokens = token_counter()(messages_of(predictor, predictor.demos))
        fix = f"pass a {setup.options.student_name} with fewer or shorter demos"
        if setup.original == WITHOUT_DEMOS:
            fix = "pass a smaller num_demos"
        yield LongPrompt(model, window, without_demos + own_tokens, fix)
        yield from _with_pooled_demos(setup, name, LongPrompt(model, window, instructed, ""))
        yield from _with_retrieved_demos(setup, name, LongPrompt(model, window, without_demos, ""))


def _with_pooled_demos(setup: CompileSetup, name: str, without_demos: LongPrompt) -> Iterator[LongPrompt]:
    """Yield the longest prompt with fixed demos, if the predictor has a pool of demos."""
    slots = setup.slots
    if not isinstance(slots, PoolSlots):
        return
    for slot, (lower, upper) in zip(slots.slots, slots.space.limits, strict=False):
        if slot.predictor == name:
            tokens = [pooled.tokens for pooled in slot.pool]
            yield _with_demos(setup, without_demos, tokens, min_demos=lower, max_demos=upper)


def _with_retrieved_demos(setup: CompileSetup, name: str, without_demos: LongPrompt) -> Iterator[LongPrompt]:
    """Yield the longest prompt with retrieved demos, if the predictor retrieves demos."""
    slots = setup.slots
    if isinstance(slots, RetrievalSlots) and name in slots.retrieval_pools:
        tokens = slots.retrieval_pools[name].tokens
        max_demos = setup.options.max_demos
        yield _with_demos(setup, without_demos, tokens, min_demos=0, max_demos=max_demos)


def _with_demos(
    setup: CompileSetup, without_demos: LongPrompt, tokens: Sequence[int], *, min_demos: int, max_demos: int
) -> LongPrompt:
    """Return the longest prompt that the limits on demos allow.

    Its fix suggests limits that keep prompts within the context window but still allow one demo, or
    `min_demos` if this number is larger. If no such limits exist, the fix is to shorten the demos.

    Args:
        setup: The setup of the compile run.
        without_demos: The longest prompt without demos.
        tokens: The number of tokens in each demo of the pool.
        min_demos, max_demos: Minimum and maximum number of demos in the prompt.
    """
    longest_first = sorted(tokens, reverse=True)
    most = sum(longest_first[:max_demos])
    limit = setup.options.max_demo_tokens
    if limit is not None:
        most = min(most, limit)
    room = without_demos.window - without_demos.tokens
    least_number = max(1, min_demos)
    fixes = []
    if sum(sorted(tokens)[:least_number]) <= room:
        fixes.append(f"max_demo_tokens={room}")
    num_fitting = sum(total <= room for total in itertools.accumulate(longest_first[:max_demos]))
    if num_fitting >= least_number:
        fixes.append(f"max_demos={num_fitting}")
    fix = f"pass {' or '.join(fixes)}" if fixes else "shorten the demos"
    return replace(without_demos, tokens=without_demos.tokens + most, fix=fix)


def _of_rivals(setup: CompileSetup) -> Iterator[LongPrompt]:
    """Yield the longest prompt of each predictor in the user's programs."""
    for rival in setup.rivals:
        for predictor in rival.predictors:
            model, window = _model_of(predictor)
            if window is None:
                continue
            without_demos, _ = _longest_without_demos(setup, predictor)
            tokens = without_demos + token_counter()(messages_of(predictor, predictor.demos))
            if isinstance(predictor, RetrievingPredict):
                tokens += predictor.retrieval.num_tokens
            yield LongPrompt(
                model, window, tokens, f"remove {rival.name!r} from programs, or pass it with fewer demos"
            )


def _model_of(predictor: dspy.Predict) -> tuple[str, int | None]:
    """Return the name of a predictor's model, and the model's maximum number of prompt tokens or None."""
    lm = model_of(predictor)
    name = str(getattr(lm, "model", ""))
    return name, window_of(name)


def _longest_without_demos(setup: CompileSetup, predictor: dspy.Predict) -> tuple[int, str]:
    """Return the number of tokens in the longest prompt without demos, and the name of the example in it."""
    count = token_counter()
    names = setup.splits.names
    named = zip(setup.scored_examples, names, strict=True)
    longest = heapq.nlargest(NUM_LONGEST, named, key=lambda pair: len(repr(pair[0].inputs())))
    prompts = []
    for example, name in longest:
        messages = messages_of(predictor, [], inputs_of(predictor, example))
        prompts.append((count(messages), name))
    return max(prompts)

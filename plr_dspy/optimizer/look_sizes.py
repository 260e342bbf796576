"""How many examples a candidate is scored on at a time, given its uncached demo tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import dspy

from plr_dspy.optimizer.estimate import SAMPLED_PROMPTS, inputs_of
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.prefixes import NEW_SHARE, PromptPrefixes
from plr_dspy.programs.slots import messages_of
from plr_dspy.programs.tokens import token_counter
from plr_dspy.search.space import Candidate

# With more examples at a time, a small budget would cover too few candidates.
MOST_EXAMPLES = 8


class LookSizes:
    """A function that returns the minimum number of examples for each candidate.

    A candidate whose demos have more uncached tokens is scored on more examples at a time. The
    last candidate is remembered, because its prompt is still in the server's cache.

    Args:
        build: A function that builds a candidate's program. It must also accept candidates
            that are added to the search space later.
    """

    def __init__(self, setup: CompileSetup, build: Callable[[Candidate], dspy.Module]) -> None:
        self._prefixes = PromptPrefixes(build)
        self._example_tokens = example_tokens(setup)
        self._last: Candidate = setup.slots.space.identity
        self._prefixes.size(self._last)  # Raise now if the adapter cannot build prompts without real inputs.

    def __call__(self, candidates: Sequence[Candidate]) -> Mapping[Candidate, int]:
        """Return the minimum number of examples for each candidate, if they are scored in this order."""
        sizes = {}
        for candidate in candidates:
            num_new = self._prefixes.size(candidate) - self._prefixes.num_shared(self._last, candidate)
            num_examples = math.ceil(num_new / (NEW_SHARE * self._example_tokens))
            sizes[candidate] = min(num_examples, MOST_EXAMPLES)
            self._last = candidate
        return sizes


def example_tokens(setup: CompileSetup) -> float:
    """Return the mean number of prompt tokens after the demos, by GPT-4o's tokenizer."""
    num_tokens = token_counter()
    sizes = []
    for example in setup.scored_examples[:SAMPLED_PROMPTS]:
        size = 0
        for predictor in setup.program.predictors():
            messages = messages_of(predictor, [], inputs_of(predictor, example))
            size += num_tokens(messages[-1:])
        sizes.append(size)
    return fmean(sizes)

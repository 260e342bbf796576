"""The minimum number of examples on which to score a candidate at once, given its uncached demo tokens."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from plr_dspy.optimizer.call_sizes import SAMPLED_PROMPTS, inputs_of
from plr_dspy.optimizer.setup import CompileSetup
from plr_dspy.programs.prefixes import MOST_EXAMPLES, PromptPrefixes
from plr_dspy.programs.slots import messages_of
from plr_dspy.programs.tokens import token_counter
from plr_dspy.search.space import Candidate


class LookSizes:
    """A function that returns the minimum number of examples on which to score each candidate at once.

    This minimum grows with the number of uncached tokens in a candidate's instructions and demos. The
    last candidate is remembered between calls, because the server's cache still contains its prompt.

    Args:
        setup: The setup of the compile run, including its examples.
        prefixes: Counts of the tokens that candidates' prompts share. They must also cover
            candidates that are added to the search space later.
        max_share: Maximum ratio of uncached demo tokens to example tokens, such as `NEW_SHARE`.
    """

    def __init__(self, setup: CompileSetup, prefixes: PromptPrefixes, *, max_share: float) -> None:
        self._prefixes = prefixes
        self._max_new_tokens = max_share * example_tokens(setup)  # uncached tokens per example
        self._last: Candidate = setup.slots.space.identity
        # If the adapter cannot build prompts without real inputs, raise the adapter's error now.
        self._prefixes.size(self._last)

    def __call__(self, candidates: Sequence[Candidate]) -> Mapping[Candidate, int]:
        """Return a dict that maps each candidate to its minimum number of examples.

        The candidates must be in the order in which they will be scored.
        """
        sizes = {}
        for candidate in candidates:
            num_new = self._prefixes.size(candidate) - self._prefixes.num_shared(self._last, candidate)
            num_examples = math.ceil(num_new / self._max_new_tokens)
            sizes[candidate] = min(num_examples, MOST_EXAMPLES)
            self._last = candidate
        return sizes


def example_tokens(setup: CompileSetup) -> float:
    """Return the mean number of prompt tokens that follow the demos, counted with GPT-4o's tokenizer."""
    num_tokens = token_counter()
    sizes = []
    for example in setup.scored_examples[:SAMPLED_PROMPTS]:
        size = 0
        for predictor in setup.program.predictors():
            messages = messages_of(predictor, [], inputs_of(predictor, example))
            size += num_tokens(messages[-1:])
        sizes.append(size)
    return fmean(sizes)

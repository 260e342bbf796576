"""The number of examples that a candidate is scored on in a row, given the demos that a server reads anew."""

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

# More examples at a time than this would leave too few candidates for small budgets.
MOST_EXAMPLES = 8


class LookSizes:
    """Returns the minimum number of examples of each candidate, so that reading its demos pays.

    It remembers the last candidate of the last call.

    Args:
        build: Returns the program of a candidate, also of one in a space that grew.
    """

    def __init__(self, setup: CompileSetup, build: Callable[[Candidate], dspy.Module]) -> None:
        self._prefixes = PromptPrefixes(build)
        self._example_tokens = example_tokens(setup)
        self._last: Candidate = setup.slots.space.identity
        self._prefixes.size(self._last)  # Raise now if the adapter cannot build prompts without real inputs.

    def __call__(self, candidates: Sequence[Candidate]) -> Mapping[Candidate, int]:
        """Return the minimum numbers if the candidates are scored in this order."""
        sizes = {}
        for candidate in candidates:
            num_new = self._prefixes.size(candidate) - self._prefixes.num_shared(self._last, candidate)
            num_examples = math.ceil(num_new / (NEW_SHARE * self._example_tokens))
            sizes[candidate] = min(num_examples, MOST_EXAMPLES)
            self._last = candidate
        return sizes


def example_tokens(setup: CompileSetup) -> float:
    """Return the mean tokens of the prompts' parts after the demos, by GPT-4o's tokenizer."""
    num_tokens = token_counter()
    sizes = []
    for example in setup.scored_examples[:SAMPLED_PROMPTS]:
        size = 0
        for predictor in setup.program.predictors():
            messages = messages_of(predictor, [], inputs_of(predictor, example))
            size += num_tokens(messages[-1:])
        sizes.append(size)
    return fmean(sizes)

"""Counts of uncached prompt tokens: tokens that a server must read because its prefix cache lacks them.

A server such as llama.cpp reuses the longest prefix that a prompt shares with the previous
prompt. Providers charge less for cached tokens. Since instructions and demos come first in a
prompt, candidates with the same first demos share a prefix.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import dspy

from plr_dspy.programs.attached_results import sub_modules
from plr_dspy.programs.instructions import PLACEHOLDER
from plr_dspy.programs.slots import as_text, messages_of
from plr_dspy.programs.tokens import token_counter
from plr_dspy.scoring.budget import UNCOUNTED
from plr_dspy.scoring.run_log import Tokens
from plr_dspy.search.space import Candidate

# Maximum ratio of uncached demo tokens to example tokens when a candidate is scored. Scoring more
# examples at a time lowers the ratio, because the examples share the demos.
NEW_SHARE = 0.4
# The maximum is higher if the search learns from log-probabilities. Each example then reveals more
# about a candidate, so it is better to score more candidates on fewer examples.
NEW_SHARE_WITH_LOGPROBS = 0.7
# The ratio never requires more examples than this, so that a small budget covers enough candidates.
MOST_EXAMPLES = 8

Prefix: TypeAlias = dict[str, list[str]]  # the messages before the inputs, keyed by predictor name


class PromptPrefixes:
    """Counts of the tokens that candidates' prompts share.

    Tokens are counted with GPT-4o's tokenizer. Each predictor is assumed to have its own cache.

    Args:
        build: A function that returns a candidate's program.
    """

    def __init__(self, build: Callable[[Candidate], dspy.Module]) -> None:
        self._build = build
        self._count = token_counter()
        self._prefixes: dict[Candidate, Prefix] = {}
        self._sizes: dict[str, int] = {}  # number of tokens in each message

    def num_shared(self, first: Candidate, second: Candidate) -> int:
        """Return the number of tokens in the common prefixes of two candidates' prompts."""
        prefixes = self._of(first)
        num_tokens = 0
        for name, messages in self._of(second).items():
            for before, after in zip(prefixes.get(name, ()), messages, strict=False):
                if before != after:
                    break
                num_tokens += self._sizes[after]
        return num_tokens

    def num_new(self, calls: Iterable[tuple[Candidate, Tokens]]) -> int | None:
        """Estimate the number of uncached prompt tokens if `calls` are made in the given order.

        Return None if a model did not report the token counts of a call.
        """
        previous: Candidate | None = None
        num_new = 0
        for candidate, tokens in calls:
            if any(counts.get(UNCOUNTED) for counts in tokens.values()):
                return None
            if not tokens:  # No prompt was sent: DSPy's cache answered, or the call failed.
                continue
            num_shared = 0 if previous is None else self.num_shared(previous, candidate)
            num_tokens = sum(counts.get("prompt_tokens", 0) for counts in tokens.values())
            num_new += max(0, num_tokens - num_shared)
            previous = candidate
        return num_new

    def size(self, candidate: Candidate) -> int:
        """Return the number of tokens that come before the inputs in a candidate's prompts."""
        return self.num_shared(candidate, candidate)

    def _of(self, candidate: Candidate) -> Prefix:
        if candidate not in self._prefixes:
            predictors = sub_modules(self._build(candidate), dspy.Predict)
            self._prefixes[candidate] = {name: self._messages(predictor) for name, predictor in predictors}
        return self._prefixes[candidate]

    def _messages(self, predictor: dspy.Predict) -> list[str]:
        """Return the texts of the messages before the inputs: the instructions and the fixed demos."""
        signature = predictor.signature
        *instructions, _ = messages_of(predictor, [], dict.fromkeys(signature.input_fields, PLACEHOLDER))
        if not instructions:  # The adapter puts instructions and inputs into one message.
            instructions = [{"role": "system", "content": signature.instructions}]
        texts = []
        for message in [*instructions, *messages_of(predictor, predictor.demos)]:
            text = as_text([message])
            if text not in self._sizes:
                # The counter adds a few tokens to each list of messages. The subtraction cancels them.
                self._sizes[text] = self._count([message, message]) - self._count([message])
            texts.append(text)
        return texts

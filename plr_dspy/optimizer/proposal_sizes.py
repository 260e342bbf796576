"""The approximate sizes of the prompt model's calls that propose instructions."""

from collections.abc import Sequence
from functools import cached_property

import dspy

from plr_dspy.compiling.rounds import MAX_LOW
from plr_dspy.dspy_compat import source_code_of
from plr_dspy.optimizer.call_sizes import (
    PROPOSED_INSTRUCTION,
    UNKNOWN_FIELD,
    CallSize,
    extra_instruction_tokens,
    high_total,
    unknown_tokens,
)
from plr_dspy.optimizer.setup import CompileSetup, Proposal
from plr_dspy.programs.slots import PooledDemo
from plr_dspy.programs.tokens import token_counter

CALLS_PER_PROPOSAL = 3  # approximate number of calls per task
NUM_DESCRIBED = 20  # maximum number of examples from which the prompt model describes the data
NUM_SHOWN = 3  # maximum number of demos that the prompt model sees for a predictor
OTHER_TOKENS = 600  # assumed number of tokens in each prompt besides code, instructions, demos and examples


def described_examples(setup: CompileSetup) -> list[dspy.Example]:
    """Return the examples from which the prompt model describes the data."""
    examples = list(setup.demo_examples.values())[:NUM_DESCRIBED]
    if examples:
        return examples
    demos = [demo for slot in setup.slots.slots for demo in slot.demos]
    return [dspy.Example(dict(demo.items())) for demo in demos[:NUM_DESCRIBED]]


class ProposalSizes:
    """The approximate sizes of tasks for the prompt model.

    Prompts contain the program's source code, the predictor's instruction, and demos. A new
    instruction is assumed to be as long as the old one, but to have at least `PROPOSED_INSTRUCTION`
    tokens.
    """

    def __init__(self, setup: CompileSetup) -> None:
        self._setup = setup
        self._model = str((setup.prompt_model or dspy.settings.lm).model)
        self._predictors = dict(setup.program.named_predictors())

    def of_task(self, task: Proposal, demos: Sequence[PooledDemo]) -> CallSize:
        """Return the size of all calls for a task before the search.

        If `demos` has more than `NUM_SHOWN` demos, return an upper estimate for a random draw of them.
        """
        other_tokens = CALLS_PER_PROPOSAL * OTHER_TOKENS
        other_replies = CALLS_PER_PROPOSAL * PROPOSED_INSTRUCTION
        if task.describes_data:
            return self._size(other_tokens + _num_tokens(described_examples(self._setup)), other_replies)
        instruction = _num_tokens(self._predictors[task.predictor].signature.instructions)
        shown = high_total([pooled.tokens + unknown_tokens(pooled.demo) for pooled in demos], NUM_SHOWN)
        prompts = CALLS_PER_PROPOSAL * (self._code + shown) + instruction + other_tokens
        return self._size(prompts, other_replies + max(0, instruction - PROPOSED_INSTRUCTION))

    def of_all(self) -> CallSize:
        """Return an upper estimate of the size of all calls, including proposals from failures."""
        pools = {slot.predictor: slot.pool for slot in self._setup.slots.slots}
        total = CallSize()
        for task in self._setup.proposals:
            total += self.of_task(task, pools.get(task.predictor, ()))
        for predictor in self._setup.slots.alternatives:
            total += self._of_revision(predictor)
        return total

    def _of_revision(self, name: str) -> CallSize:
        """Return the approximate size of a proposal from failures.

        The prompt has each field of the predictor and the feedback. Fields that examples lack and
        feedback are assumed to have `UNKNOWN_FIELD` tokens.
        """
        signature = self._predictors[name].signature
        longest = max(extra_instruction_tokens(self._setup)[name])
        instruction = max(PROPOSED_INSTRUCTION, _num_tokens(signature.instructions) + longest)
        examples = self._setup.scored_examples[:MAX_LOW]
        num_unknown = MAX_LOW
        for example in examples:
            num_unknown += sum(field not in example for field in signature.fields)
        prompt = OTHER_TOKENS + instruction + _num_tokens(examples) + UNKNOWN_FIELD * num_unknown
        return self._size(prompt, instruction)

    @cached_property
    def _code(self) -> int:
        return _num_tokens(source_code_of(self._setup.program))

    def _size(self, prompt_tokens: float, completion_tokens: float) -> CallSize:
        usage = {
            "prompt_tokens": float(prompt_tokens),
            "completion_tokens": float(completion_tokens),
            "new_tokens": float(prompt_tokens),
        }
        return CallSize({self._model: usage})


def _num_tokens(shown: object) -> int:
    """Return the number of tokens in an object's text."""
    return token_counter()([{"role": "user", "content": str(shown)}])

"""Instructions to choose from: the student's own, the user's, the rivals' and proposed instructions."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

import dspy

from plr_dspy.dspy_compat import current_adapter
from plr_dspy.errors import UserError
from plr_dspy.programs.rivals import Rival
from plr_dspy.programs.tokens import token_counter

OWN = "student"  # origin of the student's own demos and instructions
MOST_REASONS = 3  # maximum number of reasons in an error message
PLACEHOLDER = "..."  # stands for an unknown input or for an instruction that has not been proposed yet

GivenInstructions: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Instruction:
    """An instruction, its origin (such as "instructions[2]") and, if it cannot be used, the reason."""

    text: str
    origin: str
    reason: str = ""


@dataclass(frozen=True)
class InstructionChoices:
    """The instructions to choose from, and the instructions that cannot be used.

    Attributes:
        by_predictor: The usable instructions of each predictor that has at least two of them. The
            predictor's own instruction comes first.
        dropped: The instructions that cannot be used, keyed by predictor name.
    """

    by_predictor: Mapping[str, Sequence[Instruction]] = field(default_factory=dict)
    dropped: Mapping[str, Sequence[Instruction]] = field(default_factory=dict)


def given_instructions(program: dspy.Module, given: GivenInstructions) -> dict[str, list[Instruction]]:
    """Return the instructions that the user passed, keyed by predictor name."""
    names = [name for name, _ in program.named_predictors()]
    if not isinstance(given, Mapping):
        if len(names) > 1:
            raise UserError(
                "instructions must be a dict that maps predictor names to lists of strings, because the student has "
                f"{len(names)} predictors; got {type(given).__name__}: pass instructions='propose' or, in Python, "
                f"PLFewShot(instructions={{{names[0]!r}: [...]}}), with names from {names}"
            )
        given = {names[0]: given}
    unknown = [name for name in given if name not in names]
    if unknown:
        raise UserError(
            f"the keys of instructions must be names of the student's predictors, {names}; got {unknown}: rename "
            "these keys"
        )
    instructions = {}
    for name, texts in given.items():
        origin = "instructions" if len(names) == 1 else f"instructions[{name!r}]"
        instructions[name] = [Instruction(text, f"{origin}[{number}]") for number, text in enumerate(texts)]
    return instructions


def stand_in_instructions(
    program: dspy.Module, number: int, rivals: Sequence[Rival], *, max_tokens: Mapping[str, float]
) -> InstructionChoices:
    """Return the instructions to choose from, with placeholders for `number` proposals per predictor.

    For `max_tokens`, see `usable_instructions`.
    """
    stand_ins = [Instruction(f"{PLACEHOLDER} {i}", PLACEHOLDER) for i in range(number)]
    by_predictor = {name: stand_ins for name, _ in program.named_predictors()}
    choices = usable_instructions(program, by_predictor, rivals=rivals, max_tokens=max_tokens)
    if not choices.by_predictor:
        adapter = type(current_adapter()).__name__
        raise UserError(
            f"the adapter must show instructions in prompts; got {adapter}, which omits them: use another adapter"
        )
    return InstructionChoices(choices.by_predictor)


def usable_instructions(
    program: dspy.Module,
    instructions: Mapping[str, Sequence[Instruction]],
    *,
    rivals: Sequence[Rival],
    max_tokens: Mapping[str, float],
    known: Mapping[str, Sequence[Instruction]] = MappingProxyType({}),
) -> InstructionChoices:
    """Return the usable instructions, all with different prompts, and the instructions to drop.

    Each predictor's own instruction comes first, followed by `known` (not checked again), then by
    `instructions`. The instructions of rivals' matching predictors come last. `max_tokens` has the
    maximum number of tokens for each predictor with a limit.
    """
    by_predictor = {}
    dropped = {}
    for name, predictor in program.named_predictors():
        own = Instruction(predictor.signature.instructions, OWN)
        limit = max_tokens.get(name, math.inf)
        usable = {_prompt(predictor, earlier.text): earlier for earlier in (own, *known.get(name, ()))}
        unusable = []
        alternatives = list(instructions.get(name, ()))
        for rival in rivals:
            match = rival.matching(name, predictor)
            if match is not None and match.signature.instructions != own.text:
                alternatives.append(Instruction(match.signature.instructions, rival.name))
        for instruction in alternatives:
            prompt = _prompt(predictor, instruction.text)
            reason = ""
            if not instruction.text.strip():
                reason = "empty"
            elif prompt in usable:
                reason = f"the prompt is the same as with {usable[prompt].origin}"
            elif instruction.origin != PLACEHOLDER and instruction_tokens(instruction.text) > limit:
                reason = "too long for the model's context window"
            if reason:
                unusable.append(replace(instruction, reason=reason))
            else:
                usable[prompt] = instruction
        if len(usable) > 1:
            by_predictor[name] = list(usable.values())
        if unusable:
            dropped[name] = unusable
    return InstructionChoices(by_predictor, dropped)


def instruction_tokens(text: str) -> int:
    """Return the number of tokens in an instruction."""
    return token_counter()([{"role": "system", "content": text}])


def check_usable(given: Mapping[str, Sequence[Instruction]], choices: InstructionChoices) -> None:
    """Raise an error if none of the user's instructions for a predictor can be used."""
    for name, instructions in given.items():
        origins = {instruction.origin for instruction in instructions}
        if any(usable.origin in origins for usable in choices.by_predictor.get(name, ())):
            continue
        unusable = [
            instruction for instruction in choices.dropped.get(name, ()) if instruction.origin in origins
        ]
        reasons = "; ".join(
            f"{instruction.origin}: {instruction.reason}" for instruction in unusable[:MOST_REASONS]
        )
        raise UserError(
            f"at least one of the instructions for predictor {name!r} must be usable; got none ({reasons}): "
            "pass other instructions, or omit the argument instructions"
        )


def _prompt(predictor: dspy.Predict, text: str) -> str:
    """Return the prompt with an instruction, or only the instruction if the adapter rejects placeholders."""
    signature = predictor.signature.with_instructions(text)
    adapter: Any = current_adapter()
    with suppress(Exception):
        return repr(adapter.format(signature, [], dict.fromkeys(signature.input_fields, PLACEHOLDER)))
    return str(signature.instructions)

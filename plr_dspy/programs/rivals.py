"""Rivals: the user's programs, such as other optimizers' results, that compete with a search's candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import dspy

from plr_dspy.dspy_compat import model_of
from plr_dspy.errors import UserError, UserTypeError
from plr_dspy.programs.attached_results import sub_modules
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.fingerprint import digest_of_program
from plr_dspy.programs.splits import Examples, shown_by

Programs: TypeAlias = Mapping[str, dspy.Module] | Sequence[dspy.Module]


def named_programs(programs: Programs, *, min_number: int = 0) -> dict[str, dspy.Module]:
    """Return the programs, keyed by name, after checking their names and their number.

    Programs in a list are named "program 1", "program 2" and so on.
    """
    if isinstance(programs, Mapping):
        named = dict(programs)
    elif isinstance(programs, Sequence) and not isinstance(programs, (str, bytes)):
        named = {f"program {number}": program for number, program in enumerate(programs, start=1)}
    else:
        raise UserTypeError(
            "programs must be a dict that maps names to programs, or a list of programs; got "
            f'{type(programs).__name__}: pass {{"name": program, ...}}'
        )
    for name in named:
        if not isinstance(name, str) or not name.strip():
            raise UserTypeError(
                f"programs must have non-empty strings as names; got {name!r}: rename this program"
            )
    if len(named) < min_number:
        raise UserError(
            f"the number of programs must be at least {min_number}; got {len(named)}: add programs"
        )
    return named


class Rival:
    """A user's program that competes with a search's candidates. The program is never changed.

    Args:
        name: The program's name in reports.
        program: A copy of the user's program.

    Attributes:
        predictors: All predictors, including those in modules that another optimizer marked
            as compiled.
        models: Language models of the predictors.
        digest: Digest of the program, without its name. Identical programs have equal digests.
    """

    def __init__(self, name: str, program: dspy.Module) -> None:
        self.name = name
        self.program = program
        self.predictors = _predictors_of(program)
        models = [model_of(predictor) for predictor in self.predictors]
        self.models = [lm for lm in models if lm is not None]
        self.digest = digest_of_program(program, self.predictors, self.models)
        self._factory = ProgramFactory(program)

    def build(self, *, guarded: bool = False) -> dspy.Module:
        """Return a copy of the program.

        If `guarded`, the copy retrieves demos only if the example being scored is known.
        """
        program = self._factory.build({})
        for predictor in _predictors_of(program):
            retrieval = _retrieval_of(predictor)
            if guarded and retrieval:
                predictor.retrieval = replace(retrieval, guarded=True)
        return program

    def matching(self, name: str, predictor: dspy.Predict) -> dspy.Predict | None:
        """Return the predictor that matches one of the student's predictors, or None if there is no match.

        The match has the same fields. If several predictors have these fields, it also has the same name.
        """
        matches = [own for own in self.predictors if _fields(own) == _fields(predictor)]
        namesake = dict(self.program.named_predictors()).get(name)
        if any(own is namesake for own in matches):
            return namesake
        return matches[0] if len(matches) == 1 else None

    @property
    def demos(self) -> list[Any]:
        """The demos of all predictors."""
        return [demo for predictor in self.predictors for demo in predictor.demos]

    @property
    def num_demos(self) -> int:
        """Number of demos in all predictors' prompts, including the demos retrieved for an input."""
        number = len(self.demos)
        for predictor in self.predictors:
            retrieval = _retrieval_of(predictor)
            if retrieval:
                number += retrieval.num_demos
        return number

    def leaked(self, examples: Examples) -> list[dspy.Example]:
        """Return the examples that the program's demos show.

        The program may copy the answers to these examples from its demos.
        """
        input_names: set[str] = set()
        for predictor in self.predictors:
            input_names.update(predictor.signature.input_fields)
        return [examples[number] for number in sorted(shown_by(self.demos, examples, input_names))]


def _retrieval_of(predictor: dspy.Predict) -> Any:
    """Return the settings with which a predictor retrieves its demos, or None if its demos are fixed.

    If the user defines another attribute `retrieval`, ignore it: it has no `guarded`.
    """
    retrieval = getattr(predictor, "retrieval", None)
    return retrieval if hasattr(retrieval, "guarded") else None


def _predictors_of(program: dspy.Module) -> list[dspy.Predict]:
    """Return all predictors, including those in compiled modules."""
    return [predictor for _, predictor in sub_modules(program, dspy.Predict)]


def _fields(predictor: dspy.Predict) -> tuple[set[str], set[str]]:
    """Return the names of a predictor's inputs and outputs."""
    return set(predictor.signature.input_fields), set(predictor.signature.output_fields)

"""Loads what optimizers return and `save` writes."""

from pathlib import Path

import dspy
from dspy.primitives.module import set_attribute_by_name
from dspy.utils import magicattr

from plr_dspy.labels.calibrated_program import CalibratedProgram, PerInputOrder
from plr_dspy.programs.checks import saved_state
from plr_dspy.programs.copies import ProgramFactory
from plr_dspy.retrieval.predict import loaded, retrieve_in


def load_program(
    student: dspy.Module,
    path: str | Path,
    *,
    allow_unsafe_lm_state: bool = False,
    embedder: dspy.Embedder | None = None,
) -> dspy.Module:
    """Load a program that an optimizer returned, from the JSON that its ``save`` wrote.

    The student itself cannot load the file of a calibrated program.

    Args:
        student: The program that was compiled, created as it was then; it is not changed. It may be a larger program
            with calibrated parts: pass it with these parts as they were before they were calibrated.
        path: The file.
        allow_unsafe_lm_state: As in ``dspy.Module.load``: keep the addresses of language models that are saved with the
            program. Only for files that you trust.
        embedder: For a program whose demos are found by embeddings: what made these. It is not called to load.

    Returns:
        A copy of the student with the demos and instructions of the file. What was calibrated is a `CalibratedProgram`
        again, what orders demos for each input is a `PerInputOrder`, and predictors that found demos for each input do.

    Raises:
        OSError: when the file cannot be read.
        TypeError: when the student is no DSPy program, or the path none of a file.
        ValueError: when the file holds no saved program, or that of another student.
    """
    if not isinstance(student, dspy.Module):
        raise TypeError(f"student must be a dspy.Module; got {type(student).__name__}: pass the one that was compiled")
    state = saved_state(path)
    program = ProgramFactory(student).build({})
    try:
        if isinstance(state.get("orders"), list) and not isinstance(program, PerInputOrder):
            program = PerInputOrder(program)
        for name, saved in sorted(state.items(), key=lambda item: item[0].count(".")):  # What holds others comes first.
            place, _, last = name.rpartition(".")
            if last == "calibration" and "found" in saved:
                part = magicattr.get(program, place) if place else program
                if not isinstance(part, CalibratedProgram):
                    part = CalibratedProgram(part, predictor=saved["predictor"])
                if place:
                    set_attribute_by_name(program, place, part)
                else:
                    program = part
        retrievals = {
            name: loaded(predictor, saved["retrieval"], embedder)
            for name, predictor in program.named_predictors()
            for saved in [state if predictor is program else state.get(name, {})]
            if "retrieval" in saved
        }
        program = retrieve_in(program, retrievals)
        program.load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(
            f"{path} is of another program than the student ({type(error).__name__}: {error}); it holds "
            f"{sorted(state)}: create the student as it was when it was saved. Of a larger program, DSPy saves no part "
            "that an optimizer has compiled by itself: before you save it, set the part's _compiled to False"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded into the student: {error}") from error
    for name, predictor in program.named_predictors():
        fields, demos = predictor.signature.fields.keys(), list(predictor.demos)
        demos += retrievals[name].pool.demos if name in retrievals else []
        if demos and not any(fields & demo.keys() for demo in demos):
            raise ValueError(
                f"{path} is of another program than the student: its demos of predictor {name!r} have none of the "
                f"fields {list(fields)}"
            )
    return program

"""A function that loads a saved program, with its calibration and the demos to retrieve."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy

from plr_dspy.dspy_compat import LM_CLASS, UNSAFE_LM_STATE_KEYS, magicattr, set_attribute_by_name
from plr_dspy.errors import UserError
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.per_input_order import PerInputOrder
from plr_dspy.programs.checks import check_module, saved_state
from plr_dspy.programs.copying import ProgramFactory
from plr_dspy.programs.fingerprint import ACCESS
from plr_dspy.programs.made_with import other_settings
from plr_dspy.retrieval.predict import loaded, retrieve_in

logger = logging.getLogger(__name__)

# If a field has no description, DSPy saves the field's name instead, as in "${review}".
OWN_NAME = re.compile(r"\$\{(\w+)\}")


def load_program(
    student: dspy.Module,
    path: str | Path,
    *,
    allow_unsafe_lm_state: bool = False,
    embedder: dspy.Embedder | None = None,
) -> dspy.Module:
    """Load an optimized program from a file that ``program.save`` wrote.

    Args:
        student: A new instance of the program that was compiled. The student is not modified.
        path: The JSON file. Pickles are not loaded, because they can run any code.
        allow_unsafe_lm_state: Whether to use the LM endpoints and custom LM classes that the file
            names, as in ``dspy.Module.load``.
        embedder: The embedder of a program that retrieves demos. Loading does not call it.

    Returns:
        A copy of the student with the demos, instructions and calibration from the file. If the
            file names the model, class and engine of the student's LM, the copy keeps this LM, with
            its address and key.

    Raises:
        OSError: If the file cannot be read.
        TypeError: If `student` is not a DSPy program, or `path` is not path-like.
        ValueError: If the file is not a program saved as JSON, or does not fit the student.
    """
    check_module(student, "student", fix="pass a new instance of the program that was compiled")
    state = saved_state(path)
    if isinstance(student, CalibratedProgram) and "calibration" not in state:
        raise UserError(
            f"{path} must hold a calibrated program, because the student is calibrated; got an uncalibrated program: "
            "pass student.program as the student"
        )
    try:
        program = _with_saved_wrappers(ProgramFactory(student).build({}), state)
        retrievals = {}
        saved_fields = {}
        own_lms = {}
        for name, predictor in program.named_predictors():
            predictor_state = state if predictor is program else state.get(name, {})
            saved_fields[name] = predictor_state.get("signature", {}).get("fields", [])
            if "retrieval" in predictor_state:
                retrievals[name] = loaded(predictor, predictor_state["retrieval"], embedder)
            saved_lm = predictor_state.get("lm") or {}
            if not allow_unsafe_lm_state and _is_same_lm(predictor.lm, saved_lm):
                own_lms[name] = _with_saved_settings(predictor.lm, saved_lm)
                predictor_state["lm"] = None
        program = retrieve_in(program, retrievals)
        program.load_state(state, allow_unsafe_lm_state=allow_unsafe_lm_state)
        for name, predictor in program.named_predictors():
            predictor.lm = own_lms.get(name, predictor.lm)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        _check_fields_of_all(path, student, state)
        raise UserError(
            f"{path} cannot be loaded into the student ({type(error).__name__}: {error}). The file has the entries "
            f"{sorted(state)}. Create the student in the same way as the saved program, with the same LMs. DSPy does "
            "not save compiled sub-modules, so set their _compiled to False before you save the program."
        ) from error
    for name, predictor in program.named_predictors():
        _check_fields(path, predictor, saved_fields[name])
    differences = other_settings(program.predictors())
    if differences:
        logger.warning(
            "%s was made with %s, or compile the program again", path, "; with ".join(differences)
        )
    return program


def _is_same_lm(lm: Any, saved: Mapping[str, Any]) -> bool:
    """Return whether a saved LM has the model, type, class and engine of the student's LM."""
    own: Mapping[str, Any] = {}
    with suppress(Exception):  # DSPy cannot save some engines.
        own = lm.dump_state()
    return bool(own) and _kind_of_lm(own) == _kind_of_lm(saved)


def _kind_of_lm(state: Mapping[str, Any]) -> list[Any]:
    engine = state.get("engine")
    if isinstance(engine, Mapping):
        engine = engine.get("class")
    return [state.get("model"), state.get("model_type", "chat"), state.get(LM_CLASS), engine]


def _with_saved_settings(lm: Any, saved: Mapping[str, Any]) -> Any:
    """Return the student's LM with the saved settings, such as the temperature.

    Connection settings stay as they are.
    """
    omitted = {LM_CLASS, "engine", "async_engine", *UNSAFE_LM_STATE_KEYS}
    # DSPy saves some settings under other names, so let DSPy read them.
    restored = dspy.LM(**{name: value for name, value in saved.items() if name not in omitted}).kwargs
    own = getattr(lm, "kwargs", {})
    settings = {}
    for name, value in restored.items():
        if not ACCESS.search(name) and own.get(name) != value:
            settings[name] = value
    return lm.copy(**settings) if settings else lm


def _with_saved_wrappers(program: dspy.Module, state: Mapping[str, Any]) -> dspy.Module:
    """Wrap the program and its parts as they were wrapped when `state` was saved."""
    root = SimpleNamespace(program=program)
    # Wrap each program before its parts. The names of the parts have more dots.
    for name in sorted(state, key=lambda name: name.count(".")):
        place, _, attribute = f"program.{name}".rpartition(".")
        if attribute == "orders" and isinstance(state[name], list):
            part = magicattr.get(root, place)
            if not isinstance(part, PerInputOrder):
                set_attribute_by_name(root, place, PerInputOrder(part))
        if attribute == "calibration" and "found" in state[name]:
            part = magicattr.get(root, place)
            if not isinstance(part, CalibratedProgram):
                calibrated = CalibratedProgram(part, predictor=state[name]["predictor"])
                set_attribute_by_name(root, place, calibrated)
    wrapped: dspy.Module = root.program
    return wrapped


def _check_fields_of_all(path: str | Path, student: dspy.Module, state: Mapping[str, Any]) -> None:
    """Raise a ValueError if a file has as many predictors as the student, but different fields.

    Match predictors by their order, because their names differ if only the saved program has a wrapper.
    """
    saved_fields = []
    for part in (state, *state.values()):
        signature = part.get("signature") if isinstance(part, Mapping) else None
        if isinstance(signature, Mapping):
            saved_fields.append(signature.get("fields", []))
    predictors = student.predictors()
    # Ignore errors from a damaged file: the caller raises an error that describes them.
    with suppress(LookupError, TypeError):
        if len(predictors) == len(saved_fields):
            for predictor, fields in zip(predictors, saved_fields, strict=True):
                _check_fields(path, predictor, fields)


def _check_fields(
    path: str | Path, predictor: dspy.Predict, saved_fields: Sequence[Mapping[str, Any]]
) -> None:
    """Raise a ValueError if the fields of a saved predictor cannot be the fields of `predictor`."""
    fields = predictor.signature.fields
    # DSPy saves descriptions, but not field names.
    saved = [field["description"] for field in saved_fields]
    if not saved:
        return
    names = [match.group(1) for match in map(OWN_NAME.fullmatch, saved) if match is not None]
    if len(saved) != len(fields) or not fields.keys() >= set(names):
        shown = [OWN_NAME.sub(r"\1", description) for description in saved]
        raise UserError(
            f"{path} must hold a program with the student's fields {list(fields)}; got the fields {shown}: create the "
            "student in the same way as the saved program"
        )

"""A function that restores a saved program's wrappers before the saved state is loaded."""

from collections.abc import Mapping
from types import SimpleNamespace

import dspy

from plr_dspy.dspy_compat import magicattr, set_attribute_by_name
from plr_dspy.labels.calibrated_program import CalibratedProgram
from plr_dspy.labels.per_input_order import PerInputOrder
from plr_dspy.lm.plain_text_adapter import Value


def with_saved_wrappers(program: dspy.Module, state: Mapping[str, Value]) -> dspy.Module:
    """Wrap the program and its parts as they were wrapped when `state` was saved."""
    if isinstance(state.get("orders"), list) and not isinstance(program, PerInputOrder):
        program = PerInputOrder(program)
    root = SimpleNamespace(program=program)
    # Wrap each program before its parts. The names of the parts have more dots.
    for name in sorted(state, key=lambda name: name.count(".")):
        place, _, attribute = f"program.{name}".rpartition(".")
        if attribute == "calibration" and "found" in state[name]:
            part = magicattr.get(root, place)
            if not isinstance(part, CalibratedProgram):
                calibrated = CalibratedProgram(part, predictor=state[name]["predictor"])
                set_attribute_by_name(root, place, calibrated)
    wrapped: dspy.Module = root.program
    return wrapped

"""Records of the adapter and models that a program was compiled with, to warn if they change later."""

from collections.abc import Iterable
from typing import Any

import dspy

from plr_dspy.dspy_compat import current_adapter, model_of

# Key of the record in a predictor's `traces`. DSPy saves and loads this list, but never uses it.
RECORD = "plr_dspy made this with"


def settings_of(predictor: dspy.Predict) -> dict[str, str | None]:
    """Return the names of the adapter and the model that a predictor uses now, or None for an unknown model."""
    adapter = current_adapter()
    model = model_of(predictor)
    options = "" if getattr(adapter, "show_instructions", True) else "(show_instructions=False)"
    return {
        "adapter": f"{type(adapter).__name__}{options}",
        "model": str(model.model) if hasattr(model, "model") else None,
    }


def record_settings(program: dspy.Module) -> None:
    """Record the current adapter and model in each predictor of a program."""
    for predictor in program.predictors():
        others = [trace for trace in predictor.traces if not _is_record(trace)]
        predictor.traces = [*others, {RECORD: settings_of(predictor)}]


def other_settings(predictors: Iterable[dspy.Predict]) -> list[str]:
    """Return descriptions of differences between the recorded and the current adapter and models."""
    differences: list[str] = []
    for predictor in predictors:
        settings = settings_of(predictor)
        if dspy.settings.adapter is None and dspy.settings.lm is None:
            del settings["adapter"]  # DSPy is not configured yet, so the adapter may still change.
        for record in filter(_is_record, predictor.traces):
            for name, current in settings.items():
                before = record[RECORD].get(name)
                difference = f"the {name} {before}, but is used with {current}: configure {before}"
                if before and current and before != current and difference not in differences:
                    differences.append(difference)
    return differences


def _is_record(trace: Any) -> bool:
    return isinstance(trace, dict) and isinstance(trace.get(RECORD), dict)

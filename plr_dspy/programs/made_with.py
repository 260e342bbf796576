"""What an optimizer made a program with: the adapter and the models, in the file that DSPy saves of the program."""

from collections.abc import Iterable
from typing import Any

import dspy

# The key of the record among a predictor's `traces`, which DSPy saves and loads, and uses for nothing.
RECORD = "plr_dspy made this with"


def settings_of(predictor: dspy.Predict) -> dict[str, str | None]:
    """Return the names of the adapter and the model that a call of a predictor would use; None for no model."""
    adapter = dspy.settings.adapter or dspy.ChatAdapter()
    model = predictor.lm or dspy.settings.lm
    plainer = "" if getattr(adapter, "show_instructions", True) else "(show_instructions=False)"
    return {
        "adapter": f"{type(adapter).__name__}{plainer}",
        "model": str(model.model) if hasattr(model, "model") else None,
    }


def record_settings(program: dspy.Module) -> None:
    """Record the current adapter and model in each predictor of a program."""
    for predictor in program.predictors():
        others = [trace for trace in predictor.traces if not _is_record(trace)]
        predictor.traces = [*others, {RECORD: settings_of(predictor)}]


def other_settings(predictors: Iterable[dspy.Predict]) -> list[str]:
    """Say which adapters and models differ from those that predictors were made with, as far as they are known."""
    differences: list[str] = []
    for predictor in predictors:
        now = settings_of(predictor)
        if dspy.settings.adapter is None and dspy.settings.lm is None:
            del now["adapter"]  # Nothing is configured yet.
        for record in filter(_is_record, predictor.traces):
            for name, current in now.items():
                before = record[RECORD].get(name)
                difference = f"the {name} {before}, and is used with {current}: configure {before}"
                if before and current and before != current and difference not in differences:
                    differences.append(difference)
    return differences


def _is_record(trace: Any) -> bool:
    return isinstance(trace, dict) and isinstance(trace.get(RECORD), dict)

"""The attributes of programs in which optimizers, including DSPy's, store their results."""

from collections.abc import Mapping
from typing import Any

import dspy

CALIBRATION_REPORT = "calibration_report"
KEYS_OF_TRIALS = {"full_eval_program", "mb_program", "total_eval_calls_so_far"}
SCORES_OF_RESULTS = "val_aggregate_scores"  # name of the scores in `detailed_results`, as in `dspy.GEPA`


def result_attributes(module: object) -> list[str]:
    """Return the names of the attributes in which optimizers stored their results.

    A user's own attribute may have the same name, so also check its contents.
    """
    attributes = vars(module)
    names = []
    for name in ("reorder_report", CALIBRATION_REPORT):
        if isinstance(attributes.get(name), Mapping):
            names.append(name)
    results = attributes.get("detailed_results")
    is_own = isinstance(results, Mapping) and SCORES_OF_RESULTS in results
    if is_own or hasattr(results, SCORES_OF_RESULTS):
        names.append("detailed_results")
    for name in ("candidate_programs", "mb_candidate_programs"):
        if _lists_candidates(attributes.get(name)):
            names.append(name)
    if _logs_trials(attributes.get("trial_logs")):
        names.append("trial_logs")
        # `dspy.MIPROv2` also sets these attributes. The list is empty if it scored no minibatches.
        if attributes.get("mb_candidate_programs") == []:
            names.append("mb_candidate_programs")
        for name in ("score", "total_calls", "prompt_model_total_calls"):
            if isinstance(attributes.get(name), (int, float)):
                names.append(name)
    return names


def _logs_trials(value: Any) -> bool:
    """Return whether a value contains logs of the trials of `dspy.MIPROv2`."""
    if not isinstance(value, Mapping):
        return False
    return any(isinstance(log, Mapping) and KEYS_OF_TRIALS & log.keys() for log in value.values())


def _lists_candidates(value: Any) -> bool:
    """Return whether a value is a list of candidate programs and their scores."""
    if not isinstance(value, list) or not value:
        return False
    first = value[0]
    return isinstance(first, Mapping) and {"score", "program"} <= first.keys()


def sub_modules(program: dspy.Module, kind: type = dspy.Module) -> list[tuple[str, Any]]:
    """Return the modules of a class in a program, with their names. Omit modules in optimizers' results."""
    named = list(program.named_sub_modules())
    results = []
    for name, module in named:
        results += [f"{name}.{attribute}[" for attribute in result_attributes(module)]
    omitted = tuple(results)
    return [
        (name, module)
        for name, module in named
        if isinstance(module, kind) and not name.startswith(omitted)
    ]

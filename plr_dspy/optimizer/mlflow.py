"""Reports in MLflow: a compile that is made in an active MLflow run is logged to it."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import Any

from plr_dspy.report.data import Report

logger = logging.getLogger(__name__)

PREFIX = "reorder"


def track(report: Report) -> None:
    """Log a report to the active MLflow run; do nothing where MLflow is not imported, or no run is active.

    What MLflow cannot take is a warning: the compile is paid for.
    """
    mlflow: Any = sys.modules.get("mlflow")
    try:
        if run := getattr(mlflow, "active_run", lambda: None)():
            _log(mlflow, report, run.info.run_id)
    except Exception as error:  # of whatever stores it, wherever that is
        logger.warning("the report could not be logged to MLflow: %s: %s", type(error).__name__, error)


def _log(mlflow: Any, report: Report, run_id: str) -> None:
    """Log settings as parameters; scores by program calls, and in percent as `eval`, by which MLflow compares programs;
    and the report as ``reorder_report.json``, with matplotlib also as ``reorder_report.html``."""
    scalars = {n: v for n, v in report.settings.items() if isinstance(v, (str, int, float)) and v != ""}
    if report.signal is not None:
        scalars["signal_used"] = report.signal.used
    mlflow.log_params({f"{PREFIX}.{name}": value for name, value in scalars.items()})
    found: list[tuple[str, float, int]] = [(f"{PREFIX}.program_calls", report.program_calls["total"], 0)]
    if report.cost is not None:
        found.append((f"{PREFIX}.cost", report.cost, 0))
    for round_ in report.history:
        found.append((f"{PREFIX}.best_score", round_.best_score_so_far, round_.program_calls))
        found.append((f"{PREFIX}.mean_score", round_.mean_score, round_.program_calls))
        found.append(("eval", 100 * round_.best_score_so_far, round_.program_calls))
    for part, prefix in ((report.comparison, ""), (report.calibration, "expected_")):
        for name in ("original", "original_calibrated", "chosen", "chosen_calibrated", "gain"):
            if (value := getattr(part, name, None)) is not None:
                found.append((f"{PREFIX}.{prefix}{name}", value, 0))
    now = int(1_000 * time.time())
    metrics = [mlflow.entities.Metric(name, float(value), now, step) for name, value, step in found]
    mlflow.MlflowClient().log_batch(run_id, metrics=metrics)
    mlflow.log_dict(report.to_dict(), "reorder_report.json")
    with contextlib.suppress(ImportError):  # no matplotlib
        from plr_dspy.report.figure import page

        mlflow.log_text(page(report), "reorder_report.html")

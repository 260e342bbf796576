"""Reports in MLflow: a compile that is made in an active run is logged to it."""

from __future__ import annotations

import logging
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING

from plr_dspy.report.html import page
from plr_dspy.report.report import Report

if TYPE_CHECKING:
    from mlflow.entities import Metric

logger = logging.getLogger(__name__)

PREFIX = "reorder"


def track(report: Report) -> None:
    """Log a report to the active MLflow run; do nothing where MLflow is not imported, or no run is active.

    Logged are the settings as parameters, the scores of each round by program calls and what came out as metrics, and
    the report as ``reorder_report.json``, with matplotlib also as ``reorder_report.html``. What MLflow cannot take is
    a warning: the compile has been paid for.
    """
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or not hasattr(mlflow, "active_run") or mlflow.active_run() is None:
        return
    try:
        _log(mlflow, report)
    except Exception as error:  # of whatever stores it, wherever that is
        logger.warning("the report could not be logged to MLflow: %s: %s", type(error).__name__, error)


def _log(mlflow: ModuleType, report: Report) -> None:
    scalars = {n: v for n, v in report.settings.items() if isinstance(v, (str, int, float)) and v != ""}
    if report.signal is not None:
        scalars["signal_used"] = report.signal.used
    mlflow.log_params({f"{PREFIX}.{name}": value for name, value in scalars.items()})
    run = mlflow.active_run()
    mlflow.MlflowClient().log_batch(run.info.run_id, metrics=_metrics(mlflow, report))
    mlflow.log_dict(report.to_dict(), "reorder_report.json")
    try:
        text = page(report)
    except ImportError:  # no matplotlib
        return
    mlflow.log_text(text, "reorder_report.html")


def _metrics(mlflow: ModuleType, report: Report) -> list[Metric]:
    now = int(1_000 * time.time())

    def metric(name: str, value: float, step: int) -> Metric:
        made: Metric = mlflow.entities.Metric(f"{PREFIX}.{name}", float(value), now, step)
        return made

    found = [metric("program_calls", report.program_calls["total"], 0)]
    if report.cost is not None:
        found.append(metric("cost", report.cost, 0))
    for round_ in report.history:
        found.append(metric("best_score", round_.best_score_so_far, round_.program_calls))
        found.append(metric("mean_score", round_.mean_score, round_.program_calls))
    if report.comparison is not None:
        for name in ("original", "chosen", "gain"):
            found.append(metric(name, getattr(report.comparison, name), 0))
    if report.calibration is not None:
        for name in ("original", "original_calibrated", "chosen", "chosen_calibrated"):
            found.append(metric(f"expected_{name}", getattr(report.calibration, name), 0))
    return found

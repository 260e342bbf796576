"""Reports in MLflow: a compile that is made in an active run is logged to it."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING

from plr_dspy.report.data import Report
from plr_dspy.report.iteration import Iteration
from plr_dspy.report.page import page

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run

logger = logging.getLogger(__name__)

PREFIX = "reorder"

INHERITED = ("mlflow.user", "mlflow.source.")
"""Starts of the tags of a run that its child runs have, too: who ran what."""


def track(report: Report) -> None:
    """Log a report to the active MLflow run; do nothing where MLflow is not imported, or no run is active.

    Logged are the settings as parameters, the scores of each round by program calls and what came out as metrics, and
    the report as ``reorder_report.json``, with matplotlib also as ``reorder_report.html``. Each round becomes a child
    run, with what autolog logs of a program that it evaluates: `eval`, a score in percent. What MLflow cannot take is
    a warning: the compile has been paid for.
    """
    mlflow = sys.modules.get("mlflow")
    if mlflow is None or not hasattr(mlflow, "active_run"):
        return
    run = mlflow.active_run()
    if run is None:
        return
    try:
        _log(mlflow, report, run.info.run_id)
        for round_ in report.history:
            _log_round(mlflow, round_, parent=run)
    except Exception as error:  # of whatever stores it, wherever that is
        logger.warning("the report could not be logged to MLflow: %s: %s", type(error).__name__, error)


def _log(mlflow: ModuleType, report: Report, run_id: str) -> None:
    """Log all but the rounds' own runs."""
    scalars = {n: v for n, v in report.settings.items() if isinstance(v, (str, int, float)) and v != ""}
    if report.signal is not None:
        scalars["signal_used"] = report.signal.used
    mlflow.log_params({f"{PREFIX}.{name}": value for name, value in scalars.items()})
    found: list[tuple[str, float, int]] = [("program_calls", report.program_calls["total"], 0)]
    if report.cost is not None:
        found.append(("cost", report.cost, 0))
    for round_ in report.history:
        found.append(("best_score", round_.best_score_so_far, round_.program_calls))
        found.append(("mean_score", round_.mean_score, round_.program_calls))
    if (c := report.comparison) is not None:
        found += [("original", c.original, 0), ("chosen", c.chosen, 0), ("gain", c.gain, 0)]
    if report.calibration is not None:
        for name in ("original", "original_calibrated", "chosen", "chosen_calibrated"):
            found.append((f"expected_{name}", getattr(report.calibration, name), 0))
    metrics = [_metric(mlflow, f"{PREFIX}.{name}", value, step) for name, value, step in found]
    mlflow.MlflowClient().log_batch(run_id, metrics=metrics)
    mlflow.log_dict(report.to_dict(), "reorder_report.json")
    with contextlib.suppress(ImportError):  # no matplotlib
        mlflow.log_text(page(report), "reorder_report.html")


def _log_round(mlflow: ModuleType, round_: Iteration, *, parent: Run) -> None:
    """Log a round to a run of its own, which has ended when this returns, in whatever way."""
    # The client's runs are never active ones: none can stay so, and the last active run remains the parent.
    client = mlflow.MlflowClient()
    tags = {name: value for name, value in parent.data.tags.items() if name.startswith(INHERITED)}
    run = client.create_run(
        parent.info.experiment_id,
        tags={**tags, "mlflow.parentRunId": parent.info.run_id},
        run_name=f"round {round_.index + 1}",
    )
    values = {
        "eval": 100 * round_.best_score_so_far,
        f"{PREFIX}.best_score": round_.best_score_so_far,
        f"{PREFIX}.mean_score": round_.mean_score,
        f"{PREFIX}.program_calls": round_.program_calls,
    }
    status = "FAILED"
    try:
        metrics = [_metric(mlflow, name, value, 0) for name, value in values.items()]
        client.log_batch(run.info.run_id, metrics=metrics)
        status = "FINISHED"
    finally:
        client.set_terminated(run.info.run_id, status)


def _metric(mlflow: ModuleType, name: str, value: float, step: int) -> Metric:
    """Make what MLflow keeps of a number."""
    made: Metric = mlflow.entities.Metric(name, float(value), int(1_000 * time.time()), step)
    return made

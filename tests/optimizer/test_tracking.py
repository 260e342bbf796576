"""MLflow's own DSPy integration, with a store in a folder, records compiles."""

import json
import warnings

import dspy
import mlflow
import mlflow.dspy
import pytest
from fakes import exact_match, fake_lm, questions

from plr_dspy import PLReorder, Report

EXAMPLES = questions(40)


@pytest.fixture
def store(mlflow_runs):
    callbacks, usage = dspy.settings.callbacks, dspy.settings.track_usage
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield mlflow_runs
    dspy.configure(callbacks=callbacks, track_usage=usage)


def compiled(kind=PLReorder, *, metric=exact_match, **options):
    lm, _ = fake_lm(EXAMPLES)
    with dspy.context(lm=lm):
        student = dspy.LabeledFewShot(k=5).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
        optimizer = kind(metric, max_metric_calls=120, display_progress=False, num_threads=2, **options)
        program = optimizer.compile(student, trainset=EXAMPLES)
    return program, optimizer


def test_autolog_records_a_compile(store):
    mlflow.dspy.autolog(log_traces=False, log_compiles=True)
    program, optimizer = compiled(seed=3)
    run, report = mlflow.last_active_run(), optimizer.report
    assert run.data.params["reorder.seed"] == "3"
    assert run.data.params["reorder.method"] == "PLReorder"
    assert run.data.params["reorder.signal"] == "auto"
    assert run.data.params["reorder.signal_used"] == "score"
    assert run.data.metrics["reorder.program_calls"] == report.program_calls["total"]
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "reorder.best_score")
    assert [(m.step, m.value) for m in history] == [
        (i.program_calls, pytest.approx(i.best_score_so_far)) for i in report.history
    ]
    client, number = mlflow.MlflowClient(), run.info.run_id
    paths = [each.path for each in client.list_artifacts(number)]
    files = {path: client.download_artifacts(number, path) for path in paths}
    assert Report.load(files["reorder_report.json"]) == report
    with open(files["reorder_report.png"], "rb") as picture:
        assert picture.read().startswith(b"\x89PNG")
    assert not {"student", "trainset"} & set(vars(optimizer)), "MLflow adds them to what get_params returns"
    with open(files["best_model.json"]) as state:
        saved = [demo["question"] for demo in json.load(state)["demos"]]
    assert saved == [demo.question for demo in program.demos]


@pytest.mark.parametrize(("error", "own"), [(KeyboardInterrupt, True), (OSError, False)])
def test_a_compile_that_ends_early_is_logged_and_leaves_no_run_open(store, error, own):
    calls = []

    def ending(example, prediction, trace=None):
        calls.append(example)
        if len(calls) > 100:
            raise error("enough")
        return exact_match(example, prediction)

    mlflow.dspy.autolog(log_traces=False, log_compiles=not own)
    run = mlflow.start_run() if own else None
    with pytest.raises(error):
        compiled(metric=ending, max_errors=1)
    if own:
        assert mlflow.active_run().info.run_id == run.info.run_id
        mlflow.end_run()
    assert mlflow.active_run() is None
    assert mlflow.last_active_run().data.metrics["reorder.program_calls"] >= 100
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert "RUNNING" not in {run.info.status for run in runs}


def test_nothing_is_logged_without_a_run_and_a_store_that_fails_costs_no_compile(store, monkeypatch, caplog):
    def broken(params):
        raise OSError("no such store")

    compiled()
    assert not store.exists()
    monkeypatch.setattr(mlflow, "log_params", broken)
    with mlflow.start_run():
        program, _ = compiled()
    assert program.demos
    assert "could not be logged to MLflow: OSError: no such store" in caplog.text

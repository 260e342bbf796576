"""MLflow's own DSPy integration, with a store in a folder, records compiles."""

import json
import warnings

import dspy
import mlflow
import mlflow.dspy
import pytest
from fakes import exact_match, fake_lm, questions

from plr_dspy import PLReorder

EXAMPLES = questions(40)


@pytest.fixture
def store(mlflow_runs):
    callbacks, usage = dspy.settings.callbacks, dspy.settings.track_usage
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield mlflow_runs
    dspy.configure(callbacks=callbacks, track_usage=usage)


def compiled(metric=exact_match, **options):
    lm, _ = fake_lm(EXAMPLES)
    with dspy.context(lm=lm):
        student = dspy.LabeledFewShot(k=5).compile(dspy.Predict("question -> answer"), trainset=EXAMPLES)
        optimizer = PLReorder(metric, max_metric_calls=120, display_progress=False, num_threads=2, **options)
        program = optimizer.compile(student, trainset=EXAMPLES)
    return program, optimizer


def test_autolog_records_a_compile(store):
    mlflow.dspy.autolog(log_traces=False, log_compiles=True)
    program, optimizer = compiled()
    client, number = mlflow.MlflowClient(), mlflow.last_active_run().info.run_id
    files = {each.path: client.download_artifacts(number, each.path) for each in client.list_artifacts(number)}
    assert not {"student", "trainset"} & set(vars(optimizer)), "MLflow adds them to what get_params returns"
    with open(files["best_model.json"]) as state:
        saved = [demo["question"] for demo in json.load(state)["demos"]]
    assert saved == [demo.question for demo in program.demos]


def test_a_compile_that_fails_leaves_no_run_open(store):
    def failing(example, prediction, trace=None):
        raise OSError("enough")

    mlflow.dspy.autolog(log_traces=False, log_compiles=True)
    with pytest.raises(OSError, match="enough"):
        compiled(failing, max_errors=1)
    assert mlflow.active_run() is None
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert "RUNNING" not in {run.info.status for run in runs}

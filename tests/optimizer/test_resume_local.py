"""A compile against the real local model, whose process is killed, and whose server is killed and restarted."""

import json
import os
import signal
import time
from pathlib import Path

import dspy
from brief import Sentiment, accuracy, brief_reviews
from test_resume import SPAWN, lines, same

from plr_dspy import PlainTextAdapter, PLReorder, completion_lm
from plr_dspy.local import LocalServer

NUM_THREADS = 2


def compile_locally(model, api_base, log_dir, result):
    trainset = brief_reviews("train", 14)
    student = dspy.LabeledFewShot(k=4).compile(dspy.Predict(Sentiment), trainset=trainset)
    reorder = PLReorder(
        accuracy,
        max_metric_calls=80,  # 54 are made: those that fail beside them do not cut it short
        num_iterations=2,
        num_samples=3,
        signal="score",
        num_threads=NUM_THREADS,
        max_errors=2,
        log_dir=log_dir,
        display_progress=False,
    )
    lm = completion_lm(
        model, api_base=api_base, temperature=0.0, max_tokens=4, num_retries=0, timeout=30, cache=False
    )
    with dspy.context(lm=lm, adapter=PlainTextAdapter()):
        reorder.compile(student, trainset=trainset)
    Path(result).write_text(json.dumps(reorder.report.to_dict()))


def start(server, log_dir, result):
    child = SPAWN.Process(
        target=compile_locally, args=(server.model, server.api_base, str(log_dir), str(result))
    )
    child.start()
    return child


def wait_for(log_dir, count, child):
    while len(lines(log_dir / "cells.jsonl")) < count:
        assert child.is_alive()
        time.sleep(0.02)


def finished(log_dir):
    return [line for line in lines(log_dir / "cells.jsonl") if line.startswith(b'{"cell"')]


def in_one_go(log_dir, other):
    """A folder that holds the same answers, and nothing of how the compile came by them.

    A model asked again may answer otherwise: what it has read before decides its rounding.
    """
    other.mkdir()
    answered = [line for line in finished(log_dir) if b"not scored" not in line]
    begins = (b'{"tokens_of"', b'{"schema_version"')
    others = [line for line in lines(log_dir / "cells.jsonl") if line.startswith(begins)]
    (other / "cells.jsonl").write_bytes(b"".join(line + b"\n" for line in [*others, *answered]))


def test_killed_on_either_side(tmp_path):
    whole, log_dir, resumed = tmp_path / "whole.json", tmp_path / "log", tmp_path / "resumed.json"
    with LocalServer(context_length=1024) as first:
        child = start(first, log_dir, resumed)
        wait_for(log_dir, 15, child)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        killed_at = finished(log_dir)
        child = start(first, log_dir, resumed)
        wait_for(log_dir, 35, child)
    child.join()  # the server is gone: the compile ends with its error
    assert child.exitcode == 1
    assert not resumed.exists()
    lost_at = finished(log_dir)
    assert lost_at[: len(killed_at)] == killed_at
    failed = sum(b"not scored" in line for line in lost_at)
    assert 2 <= failed <= 2 + NUM_THREADS

    with LocalServer(context_length=1024) as second:
        compile_locally(second.model, second.api_base, log_dir, resumed)
        in_one_go(log_dir, tmp_path / "other")
        compile_locally(second.model, second.api_base, tmp_path / "other", whole)
    assert len(finished(tmp_path / "other")) == len(finished(log_dir)) - failed
    expected, report = (same(json.loads(path.read_text())) for path in (whole, resumed))
    for name in ("slots", "comparison", "candidates", "errors", "stopped"):
        assert report[name] == expected[name]
    assert report["program_calls"]["total"] == len(finished(log_dir)) <= 80
    assert report["program_calls"]["total"] == expected["program_calls"]["total"] + failed

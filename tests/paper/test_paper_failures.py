"""Failures of experiments: changed data, API keys in error messages, and killed processes."""

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path

import dspy
import pytest
from brief import accuracy, write_task
from fakes import CHILDREN
from servers import Server, completion, running

from paper.commands import main
from paper.held_out import HeldOut
from paper.model import ServedModel
from paper.results import RESULTS, read_results
from plr_dspy import PlainTextAdapter
from plr_dspy.data import load_reviews

SCRIPT = Path(__file__).parents[2] / "examples" / "paper"
KEY = "zq9verysecretvalue00817"


@pytest.fixture
def server():
    """Serve delayed replies: labels that depend on the length of the request, or errors with the API key."""

    def answer(request):
        time.sleep(server.seconds)
        label = ("negative", "positive")[len(json.dumps(request.body)) % 2]
        error = {"error": {"message": f"boom key {request.key}"}}
        request.reply(server.status, completion(f" {label}\n") if server.status == 200 else error)

    with running(Server(answer)) as server:
        server.seconds = 0.0
        server.status = 200
        yield server


@pytest.fixture
def data(tmp_path):
    return write_task(tmp_path / "data")


def arguments(server, data, out, *more, methods=("Static", "Ours")):
    return [
        *("run", "--tasks", "mr", "--num-demos", "3", "--seeds", "1", "--pool", "10", "--test", "6"),
        *("--model", "hosted_vllm/fake", "--api-base", server.api_base, "--data-dir", str(data)),
        *("--out", str(out), "--methods", *methods),
        *more,
    ]


def test_results_for_other_examples_need_another_folder(server, data, tmp_path, capsys):
    assert main(arguments(server, data, tmp_path / "out", methods=["Static"])) == 0
    calls = server.num_requests
    other = write_task(tmp_path / "other", skip=20)
    assert main(arguments(server, other, tmp_path / "out")) == 2
    assert "whose examples differ" in capsys.readouterr().err
    assert server.num_requests == calls
    assert main(arguments(server, data, tmp_path / "out")) == 0


def test_held_out_scores_of_other_examples_are_not_reused(server, tmp_path):
    reviews = load_reviews("test")
    program = dspy.Predict("review -> sentiment")
    program.demos = reviews[-2:]
    calls = []
    with ServedModel("hosted_vllm/fake", (server.api_base,)).open(format="plain") as make_lm:
        for examples in (reviews[:4], reviews[:4], reviews[4:8]):
            with dspy.context(lm=make_lm(8), adapter=PlainTextAdapter()):
                HeldOut(
                    program, metric=accuracy, examples=examples, folder=tmp_path, num_threads=1
                ).scores()
            calls.append(server.num_requests)
    assert calls == [4, 4, 8]


def test_the_api_key_in_error_messages_of_a_provider_is_hidden(
    server, data, tmp_path, capsys, caplog, monkeypatch
):
    monkeypatch.setenv("MYKEY", KEY)
    server.status = 400
    assert main(arguments(server, data, tmp_path / "out", "--api-key-env", "MYKEY")) == 1
    printed = capsys.readouterr()
    assert {request.key for request in server.requests} == {KEY}
    assert "boom key" in printed.out + printed.err + caplog.text
    assert KEY not in printed.out + printed.err + caplog.text
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or KEY not in path.read_text(errors="replace")


def test_the_key_in_the_named_variable_is_sent(server, monkeypatch):
    """The key is sent even if the provider has no explicit address."""
    monkeypatch.setenv("MYKEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "another-account")
    monkeypatch.setenv("OPENAI_BASE_URL", server.api_base)
    server.answer = lambda request: request.reply(200, completion("negative", plain=False))
    with ServedModel("openai/gpt-x", api_key_env="MYKEY").open(format="chat") as make_lm:
        make_lm(8)("hello")
    assert {request.key for request in server.requests} == {KEY}


def children(pid):
    pids = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            pids += [int(child), *children(int(child))]
    return pids


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def in_one_go():
    results_by_run = {}

    def results(options):
        if not results_by_run:
            assert main(options) == 0
            folder = Path(options[options.index("--out") + 1])
            results_by_run.update({result.run: result for result in read_results(folder / RESULTS)})
        return results_by_run

    return results


def run_script(options):
    """Run `python examples/paper` with these options in a process that has already imported DSPy."""
    sys.path[:] = [folder for folder in sys.path if Path(folder) != SCRIPT.parent]
    for name in list(sys.modules):
        if name.partition(".")[0] == "paper":
            del sys.modules[name]
    sys.argv[1:] = options
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs processes in /proc")
@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGTERM, 2), (signal.SIGKILL, 1)])
def test_a_killed_grid_leaves_no_workers_and_resumes(server, data, tmp_path, in_one_go, number, jobs):
    server.seconds = 0.05 * jobs
    more = {"methods": ["Static", "Top-K"]}
    options = arguments(server, data, out := tmp_path / "out", "--seeds", "1", "2", **more)
    grid = CHILDREN.Process(target=run_script, args=([*options, "--jobs", str(jobs)],))
    grid.start()
    deadline = time.monotonic() + 240
    while server.num_requests < 24 and alive(grid.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.num_requests >= 24
    workers = children(grid.pid)
    os.kill(grid.pid, number)
    grid.join(30)
    # Ray's daemons check only occasionally whether their parent is alive.
    deadline = time.monotonic() + 120
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in workers if alive(pid)]
    assert number == signal.SIGKILL or grid.exitcode == 130
    calls = server.num_requests
    before = b""
    if (out / RESULTS).exists():  # Ray may be slow to report the first finished run.
        before = (out / RESULTS).read_bytes()
    server.seconds = 0.0
    assert main(options) == 0
    assert (out / RESULTS).read_bytes().startswith(before), "finished runs must not be repeated"
    num_calls = sum(r.program_calls["total"] + 6 for r in read_results(out / RESULTS))
    assert num_calls <= server.num_requests <= num_calls + 8, "only calls in progress may be repeated"
    assert calls < num_calls
    others = in_one_go(arguments(server, data, tmp_path / "again", "--seeds", "1", "2", **more))
    for result in read_results(out / RESULTS):
        assert (result.orderings, result.scores) == (
            others[result.run].orderings,
            others[result.run].scores,
        )

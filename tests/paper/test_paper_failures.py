"""What an experiment must survive: other data, keys that providers repeat, kills of what spreads it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import dspy
import pytest

from paper.commands import main
from paper.held_out import HeldOut
from paper.model import ServedModel
from paper.results import read_results
from plr_dspy import PlainTextAdapter
from plr_dspy.data import load_reviews

SCRIPT = Path(__file__).parents[2] / "examples" / "paper"
USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
KEY = "zq9verysecretvalue00817"


class Server:
    """A loopback completions endpoint: answers a label by the length of the prompt, late, or repeats the key."""

    def __init__(self):
        self.calls, self.keys = 0, set()
        self.seconds, self.status = 0.0, 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.calls += 1
                outer.keys.add(self.headers.get("Authorization", "").removeprefix("Bearer "))
                time.sleep(outer.seconds)
                label = ("negative", "positive")[len(body) % 2]
                chat = f"[[ ## sentiment ## ]]\n{label}\n\n[[ ## completed ## ]]"
                choice = {"index": 0, "text": f" {label}\n", "finish_reason": "stop"}
                choice["message"] = {"role": "assistant", "content": chat}
                answer = {
                    "id": "x",
                    "object": "x",
                    "created": 1,
                    "model": "m",
                    "choices": [choice],
                    "usage": USAGE,
                }
                if outer.status != 200:
                    answer = {"error": {"message": f"boom key {self.headers.get('Authorization')}"}}
                content = json.dumps(answer).encode()
                self.send_response(outer.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.api_base = f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def write_data(folder, *, skip=0):
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        rows = [{"text": e.review, "label": e.sentiment} for e in load_reviews(part)]
        rows = rows[skip:] if part == "test" else rows
        (folder / f"mr_{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data")


def arguments(server, data, out, *more, methods=("Static", "Ours")):
    return [
        *("run", "--tasks", "mr", "--num-demos", "3", "--seeds", "1", "--pool", "10", "--test", "6"),
        *("--model", "hosted_vllm/fake", "--api-base", server.api_base, "--data-dir", str(data)),
        *("--out", str(out), "--methods", *methods),
        *more,
    ]


def test_results_on_other_examples_need_another_folder(server, data, tmp_path, capsys):
    assert main(arguments(server, data, tmp_path / "out", methods=["Static"])) == 0
    calls = server.calls
    other = write_data(tmp_path / "other", skip=20)
    assert main(arguments(server, other, tmp_path / "out")) == 2
    assert "on other examples" in capsys.readouterr().err
    assert server.calls == calls
    assert main(arguments(server, data, tmp_path / "out")) == 0


def test_held_out_scores_of_other_examples_are_not_taken(server, tmp_path):
    reviews = load_reviews("test")
    with ServedModel("hosted_vllm/fake", (server.api_base,)).open(format="plain") as make_lm:
        program = dspy.Predict("review -> sentiment")
        program.demos = reviews[-2:]

        def scored(examples):
            with dspy.context(lm=make_lm(8), adapter=PlainTextAdapter()):
                held_out = HeldOut(program, metric=same, examples=examples, folder=tmp_path, num_threads=1)
                return held_out.scores(), server.calls

        _, first = scored(reviews[:4])
        _, again = scored(reviews[:4])
        _, others = scored(reviews[4:8])
    assert (first, again, others) == (4, 4, 8)


def same(example, prediction, trace=None):
    return example.sentiment == prediction.sentiment


def test_the_key_that_a_provider_repeats_is_hidden(server, data, tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.setenv("MYKEY", KEY)
    server.status = 400
    assert main(arguments(server, data, tmp_path / "out", "--api-key-env", "MYKEY")) == 1
    printed = capsys.readouterr()
    assert server.keys == {KEY}
    assert "boom key" in printed.out + printed.err + caplog.text
    assert KEY not in printed.out + printed.err + caplog.text
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or KEY not in path.read_text(errors="replace")


def test_a_key_that_is_not_set_is_an_error(server, data, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("NOSUCH", raising=False)
    for more in ([], ["--format", "chat"]):
        assert main(arguments(server, data, tmp_path / "out", "--api-key-env", "NOSUCH", *more)) == 2
        assert "NOSUCH is not set" in capsys.readouterr().err
    assert server.calls == 0


def test_the_key_that_was_named_is_the_one_sent(server, monkeypatch):
    """Also to a provider whose address nobody gave."""
    monkeypatch.setenv("MYKEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "another-account")
    monkeypatch.setenv("OPENAI_BASE_URL", server.api_base)
    with ServedModel("openai/gpt-x", api_key_env="MYKEY").open(format="chat") as make_lm:
        make_lm(8)("hello")
    assert server.keys == {KEY}


def test_a_run_says_one_line(server, data, tmp_path, caplog):
    assert main(arguments(server, data, tmp_path / "out", methods=["Static", "PLR-EMA", "PDO-FewShot"])) in (
        0,
        1,
    )
    lines = [record for record in caplog.records if record.name.startswith(("plr_dspy", "paper"))]
    assert 1 <= len([line for line in lines if line.levelname == "INFO"]) <= 3


def children(pid):
    """Processes that a process has started, and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_do_not_outlive_a_grid_that_was_killed(server, data, tmp_path, number):
    server.seconds = 0.3
    options = ["--jobs", "2", "--seeds", "1", "2"]
    command = [
        sys.executable,
        str(SCRIPT),
        *arguments(server, data, tmp_path / "out", *options, methods=["Top-K"]),
    ]
    grid = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while server.calls < 8 and grid.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert server.calls >= 8, f"the grid ended with {grid.poll()}"
    workers = children(grid.pid)
    os.kill(grid.pid, number)
    grid.wait(30)
    deadline = time.monotonic() + 120  # Ray's daemons look for their parent now and then
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in workers if alive(pid)]
    if number == signal.SIGTERM:
        assert grid.returncode == 130
    calls = server.calls
    server.seconds = 0.0
    assert main(arguments(server, data, tmp_path / "out", "--seeds", "1", "2", methods=["Top-K"])) == 0
    made = sum(r.program_calls["total"] + 6 for r in read_results(tmp_path / "out" / "results.jsonl"))
    assert made <= server.calls <= made + 8, "only calls under way are made again"
    assert calls < made

"""The benchmarks: they run, count the calls of all methods, and reproduce the numbers in the docs."""

import itertools
import json
import logging
import re
import sys
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path

import dspy
import evidence
import levers
import live
import live_results
import numpy as np
import own_programs
import peers
import probability
import pytest
import record
import record_chat
from fakes import PlainLabels, ScriptedEngine, chat_response, digest, lm_of
from landscapes import RecordedLandscape
from offline import World, measure

from paper.model import ServedModel
from paper.tasks import TASKS


@pytest.fixture(autouse=True)
def _restore_log_levels():
    """Restore the log levels of the process, because benchmarks change them."""
    level = logging.getLogger("plr_dspy").level
    yield
    logging.disable(logging.NOTSET)
    logging.getLogger("plr_dspy").setLevel(level)


FIRST = {"--model": "hosted_vllm/one", "--pool": "20", "--test": "10", "--demos": "2"}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs the live benchmark and returns the table and the number of calls."""

    engines = {}

    def opened(self, **_):
        engine = engines.setdefault(self.model, PlainLabels(self.model))
        return nullcontext(lambda max_tokens: lm_of(engine, f"fake/{self.model}"))

    def requests():
        return sum(engine.requests for engine in engines.values())

    monkeypatch.setattr(ServedModel, "open", opened)

    def of(*sides, **changed):
        for part in ("train", "test"):
            labels = ("negative", "positive")
            rows = [{"text": f"{part} {i}", "label": labels[i % 2]} for i in range(40)]
            (tmp_path / f"mr_{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        options = FIRST | {f"--{name}": str(value) for name, value in changed.items()}
        places = ["--tasks", "mr", "--data-dir", str(tmp_path), "--sides", *sides]
        arguments = itertools.chain.from_iterable(options.items())
        monkeypatch.setattr(sys, "argv", ["x", *places, *arguments])
        before = requests()
        live.main()
        table = [
            line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")
        ]
        return [[cells[0], *cells[2:5], *cells[7:]] for cells in table], requests() - before

    return of


def test_sides_keep_to_their_calls_and_all_calls_are_counted(run):
    """Sides without a number have the random search's limit. "half of it, PLReorder" has the calls of both parts."""
    sides = ("random search", "half of it", "half of it, PLReorder", "PLReorder", "PLFewShot@30")
    counted = ("original", "calibrated", "TopK calibrated@100", "calibrate@40")
    num_calls = {}
    for some in (sides, counted):
        table, calls = run(*some, pool=30)
        num_calls |= {cells[0].strip("| "): int(cells[2]) for cells in table[1:]}
        if some is sides:
            # Each program call makes one LM call.
            assert [cells[3] for cells in table[1:]] == [cells[2] for cells in table[1:]]
    assert num_calls["half of it"] < num_calls["half of it, PLReorder"] <= num_calls["random search"]
    assert 0 < num_calls["PLReorder"] <= num_calls["random search"]
    assert 0 < num_calls["PLFewShot@30"] <= 30
    assert (num_calls["calibrated"], num_calls["TopK calibrated@100"]) == (28, 100)
    assert 0 < num_calls["calibrate@40"] <= 40
    assert calls == sum(num_calls[side] for side in counted) + len(counted) * 10


def test_sides_that_retrieve_demos_make_no_calls_before_the_held_out_examples(run):
    table, _ = run("nearest last", "random order", "frequent labels", "vote", "KNNFewShot")
    assert [cells[2] for cells in table[1:]] == ["0"] * 5
    assert all(0 <= float(cells[1]) <= 1 for cells in table[1:])


def test_finished_sides_are_read_from_the_results_file(run, tmp_path, monkeypatch, capsys):
    path = tmp_path / "results.jsonl"
    table, calls = run("original", "PLFewShot@30", results=path)
    again, repeated = run("original", "PLFewShot@30", "nearest last", results=path)
    assert calls > 30
    assert repeated == 10  # Only the third side makes calls, on the held-out examples.
    assert again[: len(table)] == table
    monkeypatch.setattr(sys, "argv", ["x", str(path), "--against", "nearest last"])
    live_results.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    rows = [line.split(" | ") for line in lines]
    assert [row[0] for row in rows[1:]] == ["| original", "| PLFewShot@30", "| nearest last"]
    differences = rows[0].index("less nearest last, over draws")
    assert [bool(row[differences]) for row in rows[1:]] == [True, True, False]
    monkeypatch.setattr(sys, "argv", ["x", str(path), "--against", "nearest"])
    with pytest.raises(SystemExit, match="--against must be among"):
        live_results.main()
    with pytest.raises(SystemExit, match=r"needs a number of calls for \['PLReorder'\]"):
        run("original", "PLReorder", results=path)


class Writer:
    """A chat model that writes all requested fields: labels that depend on the prompt, and new instructions."""

    def __init__(self):
        self.requests = 0

    def complete(self, request):
        self.requests += 1
        text = "\n".join([request.system or "", *(message.text or "" for message in request.messages)])
        outputs = text.partition("Your output fields are:")[2].partition("All interactions")[0]
        values = dict.fromkeys(re.findall(r"\d\. `(\w+)`", outputs), f"instruction {self.requests}")
        if "module_advice" in values:
            values["module_advice"] = json.dumps({"self": f"advice {self.requests}"})
        if "sentiment" in values:
            values["sentiment"] = ("negative", "positive")[digest(text) < 0.5]
        if "Outputs will be a JSON object" in text:
            return chat_response(json.dumps(values))
        reply = "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in values.items())
        return chat_response(reply + "[[ ## completed ## ]]")


@pytest.mark.parametrize("peer", sorted(peers.PEERS))
def test_optimizers_of_dspy_make_about_the_requested_number_of_calls(peer):
    engine = Writer()
    task = TASKS["mr"]
    labels = ("negative", "positive")
    rows = [
        dspy.Example(review=f"review {i}", sentiment=labels[i % 2]).with_inputs("review") for i in range(60)
    ]
    of_reviews = peers.Peer(
        student=dspy.Predict(task.signature),
        labeled=rows,
        metric=task.metric(),
        output_field="sentiment",
        make_lm=lambda max_tokens: lm_of(engine),
        demos=4,
        calls=200,
        threads=2,
        seed=0,
    )
    with dspy.context(lm=lm_of(engine), adapter=dspy.ChatAdapter()):
        program = peers.compile_with(peer, of_reviews)
        num_requests = engine.requests
        assert program(review="new").sentiment in labels
    assert num_requests <= 260


@pytest.mark.parametrize("name", sorted(path.stem for path in Path(live.__file__).parent.glob("*.py")))
def test_every_benchmark_can_be_imported(name):
    import_module(name)


def test_evidence_reports_a_figure_that_differs_from_the_docs(tmp_path, monkeypatch, capsys):
    for page in ("evidence",):
        text = (evidence.DOCS / f"{page}.md").read_text(encoding="utf-8")
        (tmp_path / f"{page}.md").write_text(
            text.replace("| MR, 5 demos, 120 orders | .640 |", "| MR, 5 demos, 120 orders | .740 |")
        )
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--only", "calibrated", "--jobs", "1"])
    monkeypatch.setattr(evidence, "DOCS", tmp_path)
    assert evidence.main() == 1
    output = capsys.readouterr().out
    assert output.count("DIFFERS") == 1
    assert "23 of 24 figures agree" in output


def test_answers_for_every_order_are_recorded(tmp_path, monkeypatch):
    engine = PlainLabels("recorded")
    monkeypatch.setattr(ServedModel, "open", lambda self, **_: nullcontext(lambda tokens: lm_of(engine)))
    path = tmp_path / "new" / "mine.npz"
    monkeypatch.setattr(sys, "argv", ["x", "--demos", "3", "--test", "8", "--out", str(path)])
    record.main()
    arrays = np.load(path)
    assert arrays["logprobs"].shape == (6, 8, 2)
    assert len({tuple(order) for order in arrays["orders"].tolist()}) == 6
    assert json.loads(str(arrays["about"]))["digest"].startswith("sha256 ")
    assert not {"texts", "demo_texts"} & set(arrays)
    assert RecordedLandscape(path, 0).log_probabilities((2, 0, 1)).shape == (8, 2)


@pytest.mark.parametrize("method", ["batch", "F1 batch", "F1 light@60"])
def test_methods_for_a_rare_label_on_recorded_answers(method):
    """Each method returns a held-out score, and makes at most 64 calls."""
    world = World(evidence.FILES["AG News"], num_pool=70, share=0.15)
    result = measure(20_000, world=world, method=method)
    assert 0.0 <= result["held-out"] <= 1.0
    assert 0 < result["calls"] <= 64


class WordTokenizer:
    """A tokenizer with one token for each word, space or punctuation mark."""

    chat_template = "<role>text<end>"

    def __init__(self):
        self.numbers = {}

    def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
        turns = [f"<{message['role']}>{message['content']}<end>" for message in conversation]
        return "".join(turns) + "<assistant>"

    def encode(self, text, *, add_special_tokens):
        return [self.numbers.setdefault(part, len(self.numbers)) for part in re.findall(r"\w+|\W", text)]


class PromptDigests:
    """A chat model whose answers depend on the whole prompt. An interrupt may end it before an arrangement."""

    def __init__(self, stops_at=None):
        self.tokenizer = WordTokenizer()
        self.versions = {}
        self.num_prompts = []
        self._stops_at = stops_at

    def read(self, prompts, opening, answers):
        if len(self.num_prompts) == self._stops_at:
            raise KeyboardInterrupt
        self.num_prompts.append(len(prompts))
        words = {number: word for word, number in self.tokenizer.numbers.items()}
        texts = ["".join(map(words.get, prompt)) for prompt in prompts]
        assert all(text.endswith("".join(map(words.get, opening))) for text in texts)
        shares = np.array(list(map(digest, texts)))
        return record_chat.Reading(np.log(np.stack([shares, 1 - shares], axis=1)), shares < 0.5)


@pytest.fixture
def record_reviews(tmp_path, monkeypatch):
    """Return a function that makes a recording with a model and returns the arrays in the file."""
    rows = [{"text": f"review {i} of {i % 7}", "label": ("negative", "positive")[i % 2]} for i in range(60)]
    (tmp_path / "mr_train.jsonl").write_text("\n".join(map(json.dumps, rows[:30])))
    (tmp_path / "mr_test.jsonl").write_text("\n".join(map(json.dumps, rows[30:])))
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"weights")
    path = tmp_path / "chat" / "mr.npz"
    places = ["--weights", str(weights), "--task", "mr", "--data-dir", str(tmp_path), "--out", str(path)]

    def of(model, **sizes):
        monkeypatch.setattr(record_chat, "ChatModel", lambda weights, threads: model)
        numbers = {"pool": 20, "demos": 3, "sets": 2, "orders": 2, "examples": 6} | sizes
        arguments = itertools.chain.from_iterable(
            (f"--{name}", str(number)) for name, number in numbers.items()
        )
        monkeypatch.setattr(sys, "argv", ["x", *places, *arguments])
        with suppress(KeyboardInterrupt):
            record_chat.main()
        return np.load(path)

    return of


def test_a_recorded_prompt_equals_the_prompt_of_a_predictor():
    task = TASKS["trec"]
    chat = record_chat.Chat(task, WordTokenizer())
    predictor = dspy.Predict(task.signature)
    predictor.demos = [dspy.Example(question="Who wrote it ?", type="Human")]
    lm = lm_of(ScriptedEngine(f"{chat.opening}Location{chat.closing}"))
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        prediction = predictor(question="Where is it ?")
    inputs = {"question": "Where is it ?"}
    assert prediction.type == "Location"
    assert chat.messages(predictor.demos, inputs) == lm.history[-1]["messages"]
    assert chat.text(predictor.demos, inputs).endswith("<assistant>[[ ## type ## ]]\n")
    assert chat.tokens(predictor.demos, inputs)[-len(chat.opening_tokens) :] == chat.opening_tokens


def test_an_interrupted_recording_resumes_and_can_be_extended(record_reviews):
    """Each prompt is answered only once."""
    stopped = record_reviews(PromptDigests(stops_at=4))
    is_missing = np.isnan(stopped["logprobs"]).any(axis=(1, 2))
    assert is_missing.tolist() == [False, False, False, False, True, True]
    model = PromptDigests()
    finished = record_reviews(model)
    assert model.num_prompts == [6, 6]
    longer = PromptDigests()
    extended = record_reviews(longer, sets=3, examples=8)
    assert sorted(longer.num_prompts) == [2, 2, 2, 2, 2, 2, 8, 8]
    for arrays, arrangements in ((finished, 6), (extended, 8)):
        assert (arrays["is_own"] == (arrays["logprobs"].argmax(axis=2) == 1)).all()
        assert arrays["kinds"].tolist().count("random") == arrangements - 2
        assert (arrays["prompt_tokens"] > arrays["prefix_tokens"][:, None]).all()
    assert json.loads(str(extended["about"]))["digest"].startswith("sha256 ")
    for sizes, problem in (
        ({"seed": 1}, "seed 0; got 1"),
        ({"sets": 3}, "has answers that the options exclude"),
        ({"examples": 8}, "has answers that the options exclude"),
    ):
        with pytest.raises(SystemExit, match=problem):
            record_reviews(PromptDigests(), **sizes)


def simulated_record(path, *, num_sets=10, set_effect=0.0, order_effect=0.0, bias=0.0):
    """Write and read a record of answers to 1,000 examples, with known accuracies for 3 orders of each set."""
    rng = np.random.default_rng(5)
    gold = rng.integers(2, size=1_000)
    kinds = ["no demos", "nearest"]
    demos = [[-1, -1, -1], [-1, -1, -1]]
    sets = [-1, -1]
    chances = [0.5, 0.8]
    for number in range(num_sets):
        of_set = 0.65 + set_effect * rng.normal()
        for _ in range(3):
            kinds.append("random")
            demos.append(rng.permutation(3))
            sets.append(number)
            chances.append(of_set + order_effect * rng.normal())
    is_right = rng.random((len(kinds), len(gold))) < np.array(chances)[:, None]
    odds = np.where(is_right == (gold == 1), 1.0, -1.0)
    logprobs = np.stack([bias - odds, odds - bias], axis=2)
    about = json.dumps({"model": "simulated", "task": "mine"})
    np.savez(path, kinds=kinds, demos=demos, sets=sets, logprobs=logprobs, gold=gold, about=about)
    return levers.read(path)


@pytest.mark.parametrize("effects", [(0.0, 0.0), (0.08, 0.0), (0.0, 0.08)])
def test_the_estimated_spread_over_sets_and_orders_equals_the_simulated_spread(tmp_path, effects):
    """Without an effect, the observed spread is only noise."""
    of_sets, of_orders = effects
    record = simulated_record(tmp_path / "x.npz", num_sets=40, set_effect=of_sets, order_effect=of_orders)
    (row,) = levers.spreads([record])
    for name, truth in (("sets", of_sets), ("orders", of_orders)):
        value, low, high = map(float, re.findall(r"[\d.]+", row[f"{name}: true"]))
        assert low <= value <= high
        assert abs(value - truth) < 0.025
    is_noise = int(row["orders: noise"].removesuffix("%")) > 75
    assert is_noise == (of_orders == 0)


def test_levers_are_measured_on_other_examples_than_those_used_to_choose(tmp_path):
    record = simulated_record(tmp_path / "x.npz")
    accuracies = {name: shares.mean() for name, shares in levers.levers(record).items()}
    assert accuracies["best recorded"] > accuracies["random demos"] + 0.01
    assert abs(accuracies["best on half"] - accuracies["random demos"]) < 0.015
    assert abs(accuracies["nearest"] - 0.8) < 0.03
    biased = simulated_record(tmp_path / "x.npz", bias=1.5)
    shares = levers.levers(biased)
    assert abs(shares["random demos"].mean() - 0.5) < 0.05
    assert abs(shares["random demos, calibrated"].mean() - 0.65) < 0.03


def test_a_much_better_user_program_is_returned():
    rows = [own_programs.compiled(seed, world="better", calls=300, num_known=40) for seed in range(3)]
    assert sum(row["returned"] == row["best own"] > row["student"] + 0.1 for row in rows) >= 2
    equal = own_programs.compiled(0, world="nothing", calls=100, num_known=20)
    assert equal["returned"] == equal["student"]
    assert equal["claims"] == 0


def test_tables_include_records_of_both_kinds(record_reviews, tmp_path, monkeypatch, capsys):
    record_reviews(PromptDigests(stops_at=4))
    paths = [evidence.FILES["MR"], tmp_path / "chat" / "mr.npz"]
    monkeypatch.setattr(sys, "argv", ["x", "--records", *map(str, paths)])
    levers.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| SmolLM2-135M-Instruct | plain | mr | ") for line in lines) == 3
    assert sum(line.startswith("| model | chat | mr | ") for line in lines) == 3


def test_recorded_orders_are_scored_on_examples_that_the_search_has_not_seen():
    path = probability.RECORDED / "subj.npz"
    result = probability.ranked_run(path, 2, "PLR-1 all orders")
    landscape = RecordedLandscape(path, 2)
    assert len(result.ranking.orders) == 120
    for order, accuracy in zip(result.ranking.orders, result.ranking.accuracies, strict=True):
        assert accuracy == pytest.approx(landscape.answers(order)[80:].mean())
    assert (
        dict(zip(result.ranking.orders, result.ranking.accuracies, strict=True))[result.orderings[0]]
        == result.accuracy
    )

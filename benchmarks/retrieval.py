"""Simulated worlds in which demos that are like the input help, hurt, do not matter, or have misleading labels.

python benchmarks/retrieval.py                               # all worlds, 300 and 1,000 calls, 8 seeds, some minutes
python benchmarks/retrieval.py --worlds nothing --seeds 0 1 2 3 --calls 100 --pool 40
python benchmarks/retrieval.py --signal calibrated           # replies tell how likely each label was; or "logprobs"

A model is simulated: what it answers is decided by the prompt. Each demo has a quality and a leaning to a label of its
own, which count the more the nearer it stands to the question; a demo that shares words with the input moves the answer
towards the label that it shows; and each prompt has noise. Lines have the held-out accuracy of what `PLFewShot` returns
with fixed demos, with demos found for each input, and with both competing, that of the nearest demos without a call,
the share of compiles that call it better with a probability of .9 or more, and the gain that "auto" promises.
"""

from __future__ import annotations

import itertools
import logging
import re
import zlib
from types import SimpleNamespace
from typing import Any, Literal

import dspy
import numpy as np
from command import head, options, processes, row, with_interval
from scipy.special import log_softmax

from plr_dspy import PLFewShot
from plr_dspy.report.text import MIN_WIN_PROBABILITY

LABELS = ("red", "green", "blue")
SIGNALS = ("score", "logprobs", "calibrated")
NUM_HELD_OUT = 400
WORLDS = {  # what similarity does, how often words tell the label, qualities and leanings of demos, noise of a prompt
    "helps": (3.0, 0.9, 0.3, 0.3, 1.0),
    "hurts": (-3.0, 0.9, 0.3, 0.3, 1.0),
    "does not matter": (0.0, 0.9, 0.5, 0.5, 1.0),
    "misleads": (3.0, 0.0, 0.5, 0.3, 1.0),
    "nothing": (0.0, 0.9, 0.0, 0.0, 2.0),
}


class World(dspy.LM):  # type: ignore[misc]
    """A language model whose answers follow from the prompt; a call of a server is all that it leaves out."""

    def __init__(self, name: str, seed: int, pool: int) -> None:
        super().__init__(f"simulated/{name}", cache=False)
        self.similarity, agree, quality, leaning, self.noise = WORLDS[name]
        self.seed, number = seed, pool + NUM_HELD_OUT
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        topics = rng.integers(3, size=number)
        agrees, others = rng.random(number) < agree, rng.integers(1, 3, size=number)
        self.labels = np.where(agrees, topics, (topics + others) % 3)
        self.words = [
            {f"t{topic}w{word}" for word in rng.integers(25, size=4)}
            | {f"w{w}" for w in rng.integers(99, size=4)}
            for topic in topics
        ]
        self.qualities = quality * rng.normal(size=number)
        self.leanings = leaning * rng.normal(size=(number, 3))
        self.easy = rng.normal(size=number)
        self.examples = [
            dspy.Example(text=f"n{i} {' '.join(sorted(words))}", label=LABELS[label]).with_inputs("text")
            for i, (words, label) in enumerate(zip(self.words, self.labels, strict=True))
        ]

    def __call__(self, prompt: Any = None, messages: Any = None, **options: Any) -> list[Any]:
        texts = [message["content"] for message in messages if message["role"] == "user"]
        *shown, asked = [int(number) for text in texts for number in re.findall(r"\bn(\d+) ", text)]
        right, near = self.labels[asked], self.similarity / 4
        rng = np.random.default_rng([self.seed, asked, zlib.crc32(repr(shown).encode())])
        logits = self.noise * rng.normal(size=len(LABELS))
        logits[right] += 0.5 + self.easy[asked]
        for place, demo in enumerate(reversed(shown)):
            weight = 0.8**place
            logits += weight * self.leanings[demo]
            logits[right] += weight * self.qualities[demo]
            logits[self.labels[demo]] += weight * near * len(self.words[asked] & self.words[demo])
        said = ("[[ ## label ## ]]\n", LABELS[int(logits.argmax())], "\n\n[[ ## completed ## ]]")
        if not options.get("logprobs"):
            return ["".join(said)]
        tops = [
            SimpleNamespace(token=label, logprob=p)
            for label, p in zip(LABELS, log_softmax(logits), strict=True)
        ]
        places = [
            SimpleNamespace(token=t, logprob=0.0, top_logprobs=tops if t in LABELS else ()) for t in said
        ]
        return [{"text": "".join(said), "logprobs": SimpleNamespace(content=places)}]


def accuracy(example: dspy.Example, prediction: Any, trace: Any = None) -> bool:
    """Whether the label is right."""
    return bool(example.label == prediction.label)


def compiled(task: tuple[str, int, int, int, str]) -> dict[str, Any]:
    """What each way to show demos comes to in one world: held-out accuracies, and what "auto" claims and promises."""
    name, seed, pool, calls, signal = task
    lm, found = World(name, seed, pool), dict[str, Any]()
    student = dspy.Predict(
        dspy.Signature("text -> label").with_updated_fields("label", type_=Literal[LABELS])
    )
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):

        def held_out(program: dspy.Module) -> float:
            return float(np.mean([accuracy(each, program(text=each.text)) for each in lm.examples[pool:]]))

        before = held_out(student)
        for demos, budget in (("fixed", calls), ("retrieved", calls), ("auto", calls), ("retrieved", 0)):
            told = (
                {"signal": "score"}
                if signal == "score"
                else {"calibrate": signal == "calibrated" and budget > 0}
            )
            common = {"num_threads": 1, "seed": seed, "display_progress": False, **told}
            optimizer = PLFewShot(accuracy, demos=demos, max_metric_calls=budget, **common)
            after = held_out(optimizer.compile(student, trainset=lm.examples[:pool]))
            report = optimizer.report
            compared = report.comparison if report else None
            found[demos if budget else "nearest"] = after
            if compared is not None:
                sure = after != before and compared.probability >= MIN_WIN_PROBABILITY
                found |= {f"{demos} claims": float(sure), f"{demos} promised": compared.expected_gain}
                found[f"{demos} gained"] = after - before
    return {"student": before, **found}


def main() -> None:
    """Print a line for each world and number of calls."""
    args = options(
        __doc__ or "",
        among={"worlds": list(WORLDS), "signal": SIGNALS},
        signal=SIGNALS[0],
        worlds=list(WORLDS),
        seeds=list(range(8)),
        calls=[300, 1_000],
        pool=100,
        jobs=1,
    )
    logging.disable(logging.WARNING)
    ways = ("student", "fixed", "retrieved", "nearest", "auto")
    print(head("world, calls", *ways, "auto less the better", "claims", "auto promised", "gained"))
    with processes(args.jobs) as mapped:
        for name, calls in itertools.product(args.worlds, args.calls):
            found = list(
                mapped(compiled, [(name, seed, args.pool, calls, args.signal) for seed in args.seeds])
            )
            means = {key: np.mean([each.get(key, 0.0) for each in found]) for key in found[0]}
            behind = [each["auto"] - max(each["fixed"], each["retrieved"]) for each in found]
            claims = [
                f"{100 * means.get(f'{way} claims', 0.0):.0f} %" for way in ("fixed", "retrieved", "auto")
            ]
            cells = [*(f"{means[way]:.3f}" for way in ways), with_interval(behind), ", ".join(claims)]
            told = [f"{means.get(f'auto {what}', 0.0):+.3f}" for what in ("promised", "gained")]
            print(row(f"{name}, {calls}", *cells, *told), flush=True)


if __name__ == "__main__":
    main()

"""What F1 chooses on uneven classes, against what accuracy chooses, where the truth is known.

python benchmarks/uneven.py                         # 50, 20, 10 and 5 % of one label, 300 and 1,000 calls, 48 worlds
python benchmarks/uneven.py --shares .1 --pools 100 --calls 300 --worlds mixed nothing --ways score --seeds 0 1 2 3

The worlds are those of `landscapes.py`, with so many examples of "label 1"; their answers come through DSPy, from a
simulated model. In "mixed" `PLReorder` orders 8 demos; in "classes", "items" and "nothing" (no arrangement is better
than another) `PLFewShot` chooses from 16. "Ways" are by scores, by log-probabilities, and with calibrate=True. Lines
have the F1 of "label 1" on held-out examples (2,000 or 1,000): of the original, of accuracy's choice, of F1's choice,
and how far this is above both; how often the report of F1's choice says "better" (p >= .9) and how often the program is
worse by more than a point then, and how often the F1 of the returned program lies in the interval that is expected.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

import dspy
import numpy as np
import torch
from command import head, options, processes, row, with_interval
from landscapes import ArrangementWorld, Landscape, SyntheticLandscape
from replay import ReplayEngine, metric, replayed_examples, replayed_program
from sklearn.metrics import f1_score

from plr_dspy import F1, PLFewShot, PLReorder
from plr_dspy.report.text import MIN_WIN_PROBABILITY

LABELS = ("label 0", "label 1")
WAYS = {"score": {"signal": "score"}, "logprobs": {}, "calibrated": {"calibrate": True}}


def world(name: str, seed: int, pool: int, share: float) -> Landscape:
    """A landscape with so many examples of the second label, among those that are known and among the others."""
    made: Landscape
    if name == "mixed":
        made = SyntheticLandscape(name, 8, seed, pool + 1_000)
    else:
        made = ArrangementWorld(name, 16, seed, pool + 2_000)
    rng = np.random.default_rng([seed, 5])
    known, others = np.zeros(pool, dtype=int), np.zeros(made.num_examples - pool, dtype=int)
    known[: round(share * pool)] = others[: round(share * len(others))] = 1
    made.example_classes = [*rng.permutation(known).tolist(), *rng.permutation(others).tolist()]
    return made


def compiled(task: tuple[str, int, int, float, int, str]) -> dict[str, Any]:
    """The held-out F1 of what each metric chooses in one world, and what the report of F1 says."""
    name, seed, pool, share, calls, way = task
    torch.set_num_threads(1)
    made = world(name, seed, pool, share)
    lm = dspy.LM("openai/replay", engine=ReplayEngine(made, LABELS), cache=False, num_retries=0)
    right = made.right_labels[pool:]

    def held_out(program: dspy.Module) -> float:
        moved = getattr(getattr(program, "calibration", None), "offsets", (0.0, 0.0))
        demos = dict(program.named_predictors())[
            "self" if isinstance(program, dspy.Predict) else "program"
        ].demos
        order = tuple(int(demo["text"].removeprefix("demo ")) for demo in demos)
        answers = (made.log_probabilities(order)[pool:] + np.array(moved)).argmax(axis=1)
        return float(f1_score(right, answers, zero_division=0.0))

    found: dict[str, Any] = {}
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(), disable_history=True):
        student, examples = replayed_program(made, LABELS), replayed_examples(made, LABELS)[:pool]
        common = {
            "max_metric_calls": calls,
            "num_threads": 1,
            "seed": seed,
            "display_progress": False,
            **WAYS[way],
        }
        if name != "mixed":
            common |= {"candidates": list(student.demos)}
            student.demos = []
        found["original"] = held_out(student)
        for by, objective in (("accuracy", metric), ("F1", F1("label 1"))):
            optimizer = (PLReorder if name == "mixed" else PLFewShot)(objective, **common)
            found[by] = held_out(optimizer.compile(student, trainset=examples))
        said = optimizer.report and optimizer.report.comparison
        if said is not None:
            low, high = said.expected_chosen[1:]
            found["claimed"] = float(said.probability >= MIN_WIN_PROBABILITY)
            found["worse"] = float(found["claimed"] and found["F1"] < found["original"] - 0.01)
            found["inside"] = float(low <= found["F1"] <= high)
            found["promised"] = said.expected_gain
    return found


def main() -> None:
    args = options(
        __doc__ or "",
        among={"worlds": ["mixed", "classes", "items", "nothing"], "ways": list(WAYS)},
        worlds=["mixed", "classes", "nothing"],
        shares=[0.5, 0.2, 0.1, 0.05],
        pools=[100, 400],
        calls=[300, 1_000],
        ways=list(WAYS),
        seeds=list(range(48)),
        jobs=1,
    )
    logging.disable(logging.WARNING)
    columns = ("original", "accuracy", "F1", "F1 less accuracy", "F1 less original", "promised")
    print(
        head("world, share, examples, calls, way", *columns, "better", "worse then", "in the interval"),
        flush=True,
    )
    with processes(args.jobs) as mapped:
        for name, share, pool, calls, way in itertools.product(
            args.worlds, args.shares, args.pools, args.calls, args.ways
        ):
            found = list(mapped(compiled, [(name, seed, pool, share, calls, way) for seed in args.seeds]))
            table = {
                key: np.array([each.get(key, np.nan) for each in found]) for key in found[0] | {"promised": 0}
            }
            means = [f"{table[key].mean():.3f}" for key in ("original", "accuracy", "F1")]
            gains = [with_interval(table["F1"] - table[key]) for key in ("accuracy", "original")]
            said = [
                f"{100 * np.nanmean(table[key]):.0f} %" if key in table else ""
                for key in ("claimed", "worse", "inside")
            ]
            what = f"{name}, {share:g}, {pool}, {calls}, {way}"
            print(row(what, *means, *gains, f"{np.nanmean(table['promised']):+.3f}", *said), flush=True)


if __name__ == "__main__":
    main()

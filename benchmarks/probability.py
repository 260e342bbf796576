"""A comparison of the learned probability and the accuracy of every order of 5 demos, on recorded answers.

python benchmarks/probability.py --out runs/probability      # 3 minutes, without a model
python benchmarks/probability.py --records benchmarks/recorded/mr.npz

The comparison is an ablation of the paper. The paper's search (auto="paper") runs on half of the examples, once with
EMA and once with maximum likelihood. Then all 120 orders are scored on the other half. The seed determines the split
and the search. With --beside, the figure also shows results of `python examples/paper run --ablations probability`,
for example, results for fewer demos.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import dspy
from command import RECORDED, options, print_table
from landscapes import RecordedLandscape
from replay import Lookup, ReplayEngine, metric

from paper.figures import draw_probability, probability_frame, save_figure
from paper.held_out import HeldOut, rank_orders
from paper.protocol import ALL_ORDERS, PROBABILITY
from paper.results import RESULTS, Result, read_results
from paper.runner import VERSIONS
from plr_dspy import MixtureEM, PLReorder, RankEMA

UPDATES = {"PLR-EMA": RankEMA(), "PLR-1": MixtureEM(num_components=1)}


def ranked_run(path: Path, seed: int, method: str) -> Result:
    """Run the paper's search on half of the recorded examples, and score all orders on the other half."""
    landscape = RecordedLandscape(path, seed)
    engine = ReplayEngine(landscape)
    student = engine.program(Lookup)
    examples = engine.examples()
    known = examples[: len(examples) // 2]
    update = UPDATES[method.removesuffix(ALL_ORDERS)]
    optimizer = PLReorder(
        metric, auto="paper", update=update, seed=seed, num_threads=1, display_progress=False
    )
    with dspy.context(lm=dspy.LM("openai/recorded", engine=engine, cache=False), disable_history=True):
        compiled = optimizer.compile(student, trainset=known)
        held_out = HeldOut(student, metric=metric, examples=examples[len(known) :], num_threads=1)
        ranking = rank_orders(optimizer.report, held_out)
        scores = HeldOut(compiled, metric=metric, examples=examples[len(known) :], num_threads=1).scores()
    report = optimizer.report
    return Result(
        task=path.stem,
        num_demos=landscape.num_demos,
        seed=seed,
        method=method,
        model="SmolLM2-135M, recorded",
        format="plain",
        settings={"recorded": path.name, "known": len(known)},
        versions=VERSIONS,
        orderings=tuple(tuple(slot.ordering) for slot in report.slots),
        accuracy=sum(scores) / len(scores),
        scores=tuple(scores),
        program_calls=dict(report.program_calls),
        tokens={},
        seconds=0.0,
        schema=1,
        ranking=ranking,
    )


def main(paths: Sequence[Path], seeds: Sequence[int], folders: Sequence[Path], out: Path) -> None:
    """Print a table of all runs, and draw the figure."""
    results = []
    for path in paths:
        for method in PROBABILITY:
            results += [ranked_run(path, seed, method) for seed in seeds]
    for folder in folders:
        results += read_results(folder / RESULTS)
    frame = probability_frame(results)
    rows = []
    for (task, num_demos, update), runs in frame.groupby(["task", "num_demos", "update"], sort=False):
        row: dict[str, object] = {"task": task, "k": num_demos, "update": update}
        # τ is missing if all orders have the same accuracy.
        row["τ by seed"] = ", ".join(f"{tau:+.2f}" for tau in runs.tau.dropna())
        for column in ("tau", "most_probable", "mean", "best"):
            row[column.replace("_", " ")] = f"{runs[column].mean():.3f}"
        rows.append(row)
    print_table(rows)
    print(save_figure(draw_probability(frame), out / "probability.png"))


if __name__ == "__main__":
    logging.getLogger("plr_dspy").setLevel(logging.ERROR)
    defaults = sorted(RECORDED.glob("*.npz"))
    args = options(
        __doc__, records=[Path], seeds=[1, 2, 3, 4, 5], beside=[Path], out=Path("runs/probability")
    )
    main(args.records or defaults, args.seeds, args.beside, args.out)

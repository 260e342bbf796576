"""A recording of a model's answers for every order of five demos, which notebooks 02 and 03 read.

python notebooks/record.py                # the local model: 12,000 calls, half an hour on 2 cores
python notebooks/record.py --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 --threads 12

Finished calls are saved in `--out`. If the command is interrupted, run it again to resume.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import dspy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from paper.held_out import HeldOut
from paper.model import LOCAL, ServedModel
from paper.tasks import TASKS
from plr_dspy.data import load_reviews

NUM_DEMOS, NUM_EXAMPLES = 5, 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default=LOCAL, help="litellm name of a model with a completions endpoint"
    )
    parser.add_argument("--api-base", nargs="+", default=[], metavar="URL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/recorded"))
    args = parser.parse_args()
    task, pool = TASKS["mr"], load_reviews("train")
    program = dspy.LabeledFewShot(k=NUM_DEMOS).compile(dspy.Predict(task.signature), trainset=pool)
    (predictor,) = program.predictors()
    examples = [example for example in pool if example not in predictor.demos][:NUM_EXAMPLES]
    args.out.mkdir(parents=True, exist_ok=True)
    held_out = HeldOut(
        program, metric=task.metric(), examples=examples, num_threads=args.threads, folder=args.out
    )
    orderings = list(held_out.slots.space.enumerate())
    with (
        ServedModel(args.model, tuple(args.api_base)).open(format="plain") as make_lm,
        dspy.context(lm=make_lm(task.max_tokens("plain")), adapter=task.adapter("plain")),
    ):
        rows = held_out.rows(orderings)
    demos = [next(iter(held_out.slots.permutations(ordering).values())) for ordering in orderings]
    recorded = {
        "model": args.model,
        "demos": [dict(demo.items()) for demo in predictor.demos],
        "examples": [dict(example.items()) for example in examples],
        "right": {
            "".join(map(str, order)): "".join(str(int(score)) for score in row)
            for order, row in zip(demos, rows, strict=True)
        },
    }
    path = Path(__file__).with_name("recorded.json")
    path.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path.name}: {len(rows)} orders x {len(examples)} examples")


if __name__ == "__main__":
    main()

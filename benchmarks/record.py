"""A script that records a model's label probabilities for every order of a few demos.

`offline.py --recorded` compares methods on such recordings.

python benchmarks/record.py --out benchmarks/recorded/mine.npz    # bundled reviews, local model, 12,000 calls
python benchmarks/record.py --task agnews --data-dir DATA --model hosted_vllm/NAME \
    --api-base http://127.0.0.1:8000/v1 --threads 12 --out benchmarks/recorded/agnews_7b.npz

The server must return log-probabilities, like vLLM, llama.cpp and `transformers serve`. With --cache, an
interrupted command can be run again to resume.
"""

import argparse
import hashlib
import itertools
import json
import sys
from pathlib import Path

import numpy as np
from command import SERVED, options
from live import Draw, open_model
from live_results import EMPTY, ResultsFile

from paper.model import LOCAL
from plr_dspy.labels.batch_calibration import read_replies
from plr_dspy.local import find_weights
from quickstart import BUNDLED


def log_probabilities(draw: Draw, orders: list[tuple[int, ...]], num_threads: int) -> np.ndarray:
    """Return the log-probabilities of labels for each order, ``[orders, examples, labels]``."""
    student = draw.program(EMPTY)
    tables = []
    for order in orders:
        student.demos = [draw.labeled[demo] for demo in order]
        with draw.answering():
            replies = read_replies(student, draw.test, draw.output, num_threads=num_threads)
        if len(replies.inputs) < len(draw.test):
            num_missing = len(draw.test) - len(replies.inputs)
            raise SystemExit(
                f"with the demos in order {order}, {num_missing} of the replies had no label probabilities, but all "
                "replies must have them: use another model"
            )
        tables.append(replies.log_probabilities)
        print(f"{len(tables)} of {len(orders)} orders", file=sys.stderr, flush=True)
    return np.stack(tables)


def about(args: argparse.Namespace) -> str:
    """Return JSON that describes how the recording was made."""
    facts = {"model": args.model, "task": args.task, "seed": args.seed}
    if args.model == LOCAL:
        digest = hashlib.sha256(find_weights().read_bytes()).hexdigest()
        facts["digest"] = f"sha256 {digest}"
    facts["command"] = " ".join(sys.argv)
    return json.dumps(facts)


def main() -> None:
    args = options(
        __doc__,
        task=BUNDLED,
        data_dir=Path,
        demos=5,
        test=100,
        seed=0,
        format="plain",
        out=Path("runs/recorded.npz"),
        **SERVED,
    )
    args.share = 0.0
    args.pool = args.demos
    orders = list(itertools.permutations(range(args.demos)))
    with open_model(args) as make_lm:
        draw = Draw(args.task, args.seed, args, make_lm, ResultsFile())
        table = log_probabilities(draw, orders, args.threads)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        args.out,
        orders=np.array(orders, np.int8),
        logprobs=table.astype(np.float16),
        gold=draw.output.numbers(draw.test).astype(np.int8),
        labels=np.array(list(draw.output.labels)),
        demo_labels=draw.output.numbers(draw.labeled).astype(np.int8),
        about=about(args),
    )
    print(f"wrote {args.out}: {len(orders)} orders x {len(draw.test)} examples")


if __name__ == "__main__":
    main()

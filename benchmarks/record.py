"""Record what a model says of each label under every order of a few demos: a file that searches can be replayed on.

python benchmarks/record.py --out benchmarks/recorded/mine.npz          # bundled reviews, local model, 12,000 calls
python benchmarks/record.py --task agnews --data-dir DATA --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 \
    --threads 12 --out benchmarks/recorded/agnews_7b.npz

A server must give log-probabilities (vLLM, llama.cpp, `transformers serve`). With --cache what was stopped goes on.
"""

import hashlib
import itertools
import json
import sys
from pathlib import Path

import numpy as np
from command import SERVED, options
from live import EMPTY, Draw, opened

from paper.model import LOCAL
from plr_dspy.labels.batch_calibration import read_replies
from plr_dspy.local import find_weights
from quickstart import BUNDLED


def main() -> None:
    given = {"task": BUNDLED, "data_dir": Path, "demos": 5, "test": 100, "seed": 0, "out": Path("runs/recorded.npz")}
    args = options(__doc__, **given, **SERVED)
    args.share, args.pool, about = 0.0, args.demos, {name: getattr(args, name) for name in ("model", "task", "seed")}
    with opened(args) as make_lm:
        draw = Draw(args.task, args.seed, args, make_lm)
        student, orders = draw.program(EMPTY), list(itertools.permutations(range(args.demos)))
        table = np.empty((len(orders), len(draw.test), len(draw.output.labels)))
        for number, order in enumerate(orders):
            student.demos = [draw.labelled[i] for i in order]
            with draw.answering():
                replies = read_replies(student, draw.test, draw.output, num_threads=args.threads)
            if len(replies.inputs) < len(draw.test):
                raise SystemExit(f"order {order}: some replies say nothing of labels, so that nothing is recorded")
            table[number] = replies.log_probabilities
            print(f"{number + 1} of {len(orders)} orders", file=sys.stderr, flush=True)
    if args.model == LOCAL:
        about["digest"] = f"sha256 {hashlib.sha256(find_weights().read_bytes()).hexdigest()}"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        args.out,
        orders=np.array(orders, np.int8),
        logprobs=table.astype(np.float16),
        gold=draw.output.numbers(draw.test).astype(np.int8),
        labels=np.array(list(draw.output.labels)),
        demo_labels=draw.output.numbers(draw.labelled).astype(np.int8),
        about=json.dumps(about | {"command": " ".join(sys.argv)}),
    )
    print(f"wrote {args.out}: {len(orders)} orders x {len(draw.test)} examples")


if __name__ == "__main__":
    main()

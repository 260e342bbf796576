"""Record what a model says of each label under every order of a few demos: a file that searches can be replayed on.

python benchmarks/record.py --out benchmarks/recorded/mine.npz          # bundled reviews, local model, 12,000 calls
python benchmarks/record.py --task agnews --data-dir DATA --model hosted_vllm/NAME --api-base http://127.0.0.1:8000/v1 \
    --threads 12 --out benchmarks/recorded/agnews_7b.npz

The model is the local one, or any behind an OpenAI-compatible server that gives log-probabilities (vLLM, llama.cpp,
`transformers serve`). The file has no texts. `offline.py --recorded`, `calibration.py --recorded` and `make evidence`
read it: a search may ask for any order, so that all are recorded. Calls are cached by DSPy: what was stopped goes on.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import sys
from pathlib import Path

import dspy
import numpy as np
from command import options, served

from paper.model import LOCAL
from plr_dspy.labels.batch_calibration import read_replies
from plr_dspy.labels.calibrated_program import calibrated_output
from plr_dspy.local.server import find_weights
from quickstart import BUNDLED, load_data


def main() -> None:
    args = options(
        __doc__ or "",
        task=BUNDLED,
        data_dir=Path,
        demos=5,
        examples=100,
        seed=0,
        model=LOCAL,
        api_base=[str],
        threads=2,
        out=Path("runs/recorded.npz"),
    )
    data, rng = load_data(args.task, args.data_dir), random.Random(args.seed)
    demos = rng.sample(data.train, args.demos)
    examples = rng.sample(data.test, min(args.examples, len(data.test)))
    orders = list(itertools.permutations(range(args.demos)))
    student = dspy.Predict(data.task.signature)
    output, table = calibrated_output(student), np.empty((len(orders), len(examples), len(data.task.labels)))
    with served(args, data.task, cache=True):
        for number, order in enumerate(orders):
            student.demos = [demos[i] for i in order]
            replies = read_replies(student, examples, output, num_threads=args.threads)
            if len(replies.inputs) < len(examples):
                raise SystemExit(f"order {order}: some replies say nothing of labels, so that nothing is recorded")
            table[number] = replies.log_probabilities
            print(f"{number + 1} of {len(orders)} orders", file=sys.stderr, flush=True)
    about = {"model": args.model, "task": args.task, "seed": args.seed, "command": " ".join(sys.argv)}
    if args.model == LOCAL:
        about["digest"] = f"sha256 {hashlib.sha256(find_weights().read_bytes()).hexdigest()}"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        args.out,
        orders=np.array(orders, np.int8),
        logprobs=table.astype(np.float16),
        gold=output.numbers(examples).astype(np.int8),
        labels=np.array(list(output.labels)),
        demo_labels=output.numbers(demos).astype(np.int8),
        about=json.dumps(about),
    )
    print(f"wrote {args.out}: {len(orders)} orders x {len(examples)} examples")


if __name__ == "__main__":
    main()

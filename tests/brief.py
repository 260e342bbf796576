"""Examples made from the first words of the bundled reviews, which a model reads quickly."""

import json
from typing import Literal

import dspy

from plr_dspy.data import load_reviews


class Sentiment(dspy.Signature):
    review: str = dspy.InputField()
    sentiment: Literal["negative", "positive"] = dspy.OutputField()


def accuracy(example, prediction, trace=None):
    return example.sentiment == prediction.sentiment


def brief_reviews(part, count=None, *, words=4):
    examples = []
    for example in load_reviews(part)[:count]:
        review = " ".join(example.review.split()[:words])
        brief = dspy.Example(review=review, sentiment=example.sentiment)
        examples.append(brief.with_inputs("review"))
    return examples


def write_task(folder, *, skip=0):
    """Write brief reviews as the files of the task "mr", and return their folder."""
    folder.mkdir(exist_ok=True)
    for part, left_out in (("train", 0), ("test", skip)):
        rows = [{"text": e.review, "label": e.sentiment} for e in brief_reviews(part)[left_out:]]
        (folder / f"mr_{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder

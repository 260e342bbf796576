"""The bundled data set of 380 short reviews, written for this package and free to use."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import dspy


def load_reviews(part: Literal["train", "test"]) -> list[dspy.Example]:
    """Return the bundled reviews as examples for the signature ``review -> sentiment``.

    Args:
        part: "train" (220 reviews) or "test" (160 reviews). Half of the reviews in each part are positive.
    """
    import dspy

    file = resources.files(__name__) / f"reviews_{part}.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    examples = [dspy.Example(review=row["text"], sentiment=row["label"]) for row in rows]
    return [example.with_inputs("review") for example in examples]

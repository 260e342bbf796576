"""A few hundred short reviews, written for this package: balanced, varied, and free to use."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import dspy


def load_reviews(part: Literal["train", "test"]) -> list[dspy.Example]:
    """The bundled reviews as examples ``review -> sentiment``.

    Args:
        part: "train" (220 reviews) or "test" (160); half of either is positive.
    """
    import dspy

    text = (resources.files(__name__) / f"reviews_{part}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return [dspy.Example(review=row["text"], sentiment=row["label"]).with_inputs("review") for row in rows]

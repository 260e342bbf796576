"""Landscapes of what a real model answered, and landscapes with their demos in another original order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from landscapes import Landscape


class RecordedLandscape:
    """What a real model answered under every order; examples in an order that the seed decides.

    Args:
        path: An .npz file with ``orders`` [R, k], ``logprobs`` [R, N, L] and ``gold`` [N].
        seed: Of the order of the examples.
    """

    def __init__(self, path: Path, seed: int) -> None:
        data = np.load(path)
        shuffled = np.random.default_rng(seed).permutation(len(data["gold"]))
        self._known = {
            tuple(int(item) for item in order): table[shuffled]
            for order, table in zip(data["orders"], data["logprobs"].astype(np.float32), strict=True)
        }
        self.example_classes = [int(answer) for answer in data["gold"][shuffled]]
        self.classes = [int(label) for label in data["demo_labels"]]
        self.label_scores = np.eye(len(data["labels"]))[self.example_classes]
        self.num_demos, self.num_examples = data["orders"].shape[1], len(shuffled)

    def log_probabilities(self, order: tuple[int, ...]) -> np.ndarray:
        return self._known[order]

    def answers(self, order: tuple[int, ...]) -> np.ndarray:
        return self._known[order].argmax(axis=-1) == self.example_classes

    def best(self, examples: Sequence[int]) -> float:
        """The highest accuracy of any order on these examples, ``max_o mean_e``."""
        return max(float(self.answers(order)[list(examples)].mean()) for order in self._known)


class Renamed:
    """A landscape with its demos in another original order."""

    def __init__(self, landscape: Landscape, original: Sequence[int]) -> None:
        self._landscape, self._original = landscape, tuple(original)
        self.num_demos, self.num_examples = landscape.num_demos, landscape.num_examples
        self.classes = landscape.classes and [landscape.classes[i] for i in original]
        self.example_classes = landscape.example_classes
        self.label_scores = landscape.label_scores

    def log_probabilities(self, order: tuple[int, ...]) -> np.ndarray:
        return self._landscape.log_probabilities(tuple(self._original[i] for i in order))

    def answers(self, order: tuple[int, ...]) -> np.ndarray:
        return self._landscape.answers(tuple(self._original[i] for i in order))

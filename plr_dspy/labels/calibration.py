"""Calibrations of label probabilities, as saved with programs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from plr_dspy.errors import UserError
from plr_dspy.labels.reader import Reading
from plr_dspy.statistics.calibration import calibrated


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))  # Reject files of later versions.
class Calibration:
    """A calibration of label probabilities: ``log p + offsets``, normalised.

    Attributes:
        labels: Texts of the labels in demos, ``[L]``.
        offsets: One value per label, ``[L]``.
        shares: Target shares of the labels among answers, ``[L]``; empty if there are none.
    """

    labels: tuple[str, ...]
    offsets: tuple[float, ...]
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.offsets) or not np.isfinite(self.offsets).all():
            raise UserError(f"calibration must have a finite offset for each label; got {self}.")

    @classmethod
    def none(cls, labels: Iterable[str]) -> Calibration:
        """Return the calibration that changes nothing."""
        names = tuple(labels)
        return cls(names, (0.0,) * len(names))

    def applied(self, reading: Reading) -> Reading:
        """Return the calibrated log-probabilities, and the label that is then likeliest."""
        is_unseen = np.isin(np.arange(len(self.labels)), reading.unseen)
        logs = calibrated(reading.log_probabilities, self.offsets, unseen=is_unseen)
        return Reading(self.labels[int(logs.argmax())], tuple(logs.tolist()), reading.unseen)

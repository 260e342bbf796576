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
    """A calibration of label probabilities: ``scales * log p + offsets``, normalised.

    Attributes:
        method: Name of the method that fitted it; "none" changes nothing.
        labels: Texts of the labels in demos, ``[L]``.
        offsets, scales: One value per label, ``[L]``; scales default to 1.
        num_inputs: Number of inputs or, with `PLReorder`, of examples it was fitted to.
        shares: Target shares of the labels among answers, ``[L]``; may be empty.
    """

    method: str
    labels: tuple[str, ...]
    offsets: tuple[float, ...]
    scales: tuple[float, ...] = ()
    num_inputs: int = 0
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", self.scales or (1.0,) * len(self.offsets))
        is_finite = np.isfinite([*self.offsets, *self.scales]).all()
        if not len(self.labels) == len(self.offsets) == len(self.scales) or not is_finite:
            raise UserError(f"calibration must have a finite offset and scale for each label; got {self}.")

    @classmethod
    def none(cls, labels: Iterable[str]) -> Calibration:
        """Return the calibration that changes nothing."""
        names = tuple(labels)
        return cls("none", names, (0.0,) * len(names))

    def applied(self, reading: Reading) -> Reading:
        """Return the calibrated log-probabilities, with the label that is then likeliest."""
        is_unseen = np.isin(np.arange(len(self.labels)), reading.unseen)
        logs = calibrated(reading.log_probabilities, self.offsets, scales=self.scales, unseen=is_unseen)
        return Reading(self.labels[int(logs.argmax())], tuple(logs.tolist()), reading.unseen)

"""The base class of all parts of a report."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """An immutable part of a report. To change a value, make a copy with `model_copy`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

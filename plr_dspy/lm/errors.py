"""Errors of language models after which no further call can succeed."""

from __future__ import annotations

from dspy.utils.exceptions import (
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMUnsupportedModelError,
)


class Hopeless(Exception):
    """Every further call would fail like this one."""


HOPELESS = (Hopeless, LMAuthError, LMBillingError, LMConfigurationError, LMUnsupportedModelError)
"""The next call would fail in the same way: stop at once."""

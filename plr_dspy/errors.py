"""The errors of this package. Callers should distinguish errors by type, not by message."""


class UserError(ValueError):
    """An error for an invalid argument, example or file. The message states the fix."""


class UserTypeError(TypeError):
    """An error for an argument of the wrong type. The message states the fix."""


class MissingPackageError(ImportError):
    """An error for a missing optional package. The message says how to install the package."""


class MetricError(UserTypeError):
    """An error for a metric that cannot score a prediction, or that returns something other than a score."""


class ScoreError(UserError):
    """An error for a metric whose score is infinite, too large or NaN."""


class MissingFieldError(UserError):
    """An error for a metric that fails on every example: it reads a field that no example has."""


class FatalLMError(Exception):
    """An error in a language model call that would recur in all later calls."""


USER_ERRORS = (UserError, UserTypeError, MissingPackageError)
"""Errors whose messages explain the problem and the fix, so that users need no traceback."""

"""The errors of this package. Callers should distinguish errors by type, not by message."""


class UserError(ValueError):
    """An error for an invalid argument, example or file. The message states the fix."""


class UserTypeError(TypeError):
    """An error for an argument of the wrong type. The message states the fix."""


class MissingPackageError(ImportError):
    """An error for a missing optional package. The message says how to install the package."""


class MetricError(UserTypeError):
    """An error for a metric that cannot score a prediction, or that returns something other than a score."""


class MissingFieldError(UserError):
    """An error for a metric that reads a field that no example has, and so would fail on every example."""


class FatalLMError(Exception):
    """An error in a language model call that would also occur in all later calls."""


USER_ERRORS = (UserError, UserTypeError, MissingPackageError)
"""Errors whose message is enough for the user to fix the problem, without a traceback."""

"""The errors of this package. Distinguish them by type, not by message."""


class UserError(ValueError):
    """An argument, example or file of the user is invalid. The message says how to fix it."""


class UserTypeError(TypeError):
    """A value of the user has an invalid type. The message says how to fix it."""


class MissingPackageError(ImportError):
    """An optional package is not installed. The message says how to install it."""


class MetricError(UserTypeError):
    """A metric returned a value that is not a score."""


class FatalLMError(Exception):
    """A language model call failed for a reason that would make every later call fail."""


USER_ERRORS = (UserError, UserTypeError, MissingPackageError)
"""Errors that a user can fix from the message, without a traceback."""

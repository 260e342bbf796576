"""The errors of this package. Distinguish them by type, not by message."""


class UserError(ValueError):
    """The user passed an invalid argument, example or file. The message says how to fix it."""


class UserTypeError(TypeError):
    """The user passed a value of the wrong type. The message says how to fix it."""


class MissingPackageError(ImportError):
    """An optional package is missing. The message says how to install it."""


class MetricError(UserTypeError):
    """A metric returned a value that is not a score."""


class FatalLMError(Exception):
    """A call of the language model failed for a reason that will make all later calls fail."""


USER_ERRORS = (UserError, UserTypeError, MissingPackageError)
"""Errors that a user can fix from the message, without a traceback."""

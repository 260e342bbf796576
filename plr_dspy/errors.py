"""The errors of this package. Distinguish them by type, not by message."""


class UserError(ValueError):
    """An invalid argument, example or file of the user. The message says how to fix it."""


class UserTypeError(TypeError):
    """A value of the user with an invalid type. The message says how to fix it."""


class MissingPackageError(ImportError):
    """A missing optional package. The message says how to install it."""


class MetricError(UserTypeError):
    """A metric's return value that is not a score."""


class FatalLMError(Exception):
    """A failed call of the language model, for a reason that makes every later call fail, too."""


USER_ERRORS = (UserError, UserTypeError, MissingPackageError)
"""Errors that a user can fix from the message, without a traceback."""

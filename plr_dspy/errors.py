"""The errors of this package. Callers must tell them apart by type, not by message."""


class UserError(ValueError):
    """An argument, example or file of the user is invalid. The message says how to fix it."""


class UserTypeError(TypeError):
    """A value of the user has an invalid type. The message says how to fix it."""


class MissingPackageError(ImportError):
    """An optional package is not installed. The message says how to install it."""


class MetricError(UserTypeError):
    """A metric returned a value that is not a score."""


class FatalLMError(Exception):
    """A call of the language model failed in a way that every later call would, too."""


USER_ERRORS = (UserError, UserTypeError, MissingPackageError)
"""Errors whose message is enough to fix them, without a traceback."""

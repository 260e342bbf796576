"""This package's errors, which callers distinguish by type, never by message."""


class UserError(ValueError):
    """A user's argument, example or file cannot be used; the message says what to do."""


class UserTypeError(TypeError):
    """A user's value has a type that cannot be used; the message says what to do."""


class MissingPackageError(ImportError):
    """An optional package is not installed; the message says how to install it."""


class MetricError(UserTypeError):
    """A metric returned a value that is not a score."""


class FatalLMError(Exception):
    """Every later call of the language model would fail too."""


USER_ERRORS = (UserError, UserTypeError, MissingPackageError)
"""Errors that the user can fix without the traceback."""

"""The errors of this package that callers tell apart: by type, never by their messages."""


class UserError(ValueError):
    """An argument, example or file of the user's cannot be used; the message says what to do."""


class UserTypeError(TypeError):
    """A value of the user's has a type that cannot be used; the message says what to do."""


class MissingPackageError(ImportError):
    """An optional package is not installed; the message says how to install it."""


class MetricError(UserTypeError):
    """A metric returned a value of a type that is no score."""


class FatalLMError(Exception):
    """Every further call of the language model would fail like this one."""


USER_ERRORS = (UserError, UserTypeError, MissingPackageError)
"""The errors that the user can mend without a look at the traceback."""

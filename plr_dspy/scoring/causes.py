"""Causes of call failures outside the program, by exception type, and their cures."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from plr_dspy.report.text import count


@dataclass(frozen=True)
class Cause:
    """A cause of failure outside the program; once it is fixed, the same call may succeed."""

    errors: tuple[str, ...]  # names of exception classes in DSPy and litellm
    cure: str  # advice to the user, as the end of a sentence
    is_fatal: bool = False  # whether every later call would fail the same way


CAUSES = (
    Cause(
        ("ContextWindowExceededError",),
        "shorten the demos (fewer of them, or max_demos and max_demo_tokens of PLFewShot), or raise the server's "
        "context length and repeat these calls with accept_changes=True",
    ),
    Cause(
        ("LMAuthError", "AuthenticationError", "PermissionDeniedError"),
        "check the key (api_key), and that it may use this model",
        is_fatal=True,
    ),
    Cause(
        ("LMBillingError", "BudgetExceededError"),
        "add credit at the provider, or raise the limit that it has",
        is_fatal=True,
    ),
    Cause(
        ("LMUnsupportedModelError", "NotFoundError"),
        "check the name of the model, and that the server at api_base serves it",
        is_fatal=True,
    ),
    Cause(
        ("LMConfigurationError", "LMNotConfiguredError"),
        "give the LM what it needs to reach its provider, such as api_key and api_base",
        is_fatal=True,
    ),
    Cause(("LMTransportError", "APIConnectionError"), "see that the server runs, and that api_base is its address"),
    Cause(
        ("LMRateLimitError", "RateLimitError", "RouterRateLimitError"),
        "wait, lower num_threads, or raise the num_retries of the LM",
    ),
    Cause(
        ("LMTimeoutError", "Timeout", "APITimeoutError"),
        "raise the timeout of the LM, or lower num_threads, and see that the server is not overloaded",
    ),
    Cause(
        (
            "LMServerError",
            "LMProviderError",
            "APIError",
            "APIResponseValidationError",
            "BadGatewayError",
            "InternalServerError",
            "ServiceUnavailableError",
        ),
        "look at the log of the server, or wait until the provider is up again",
    ),
    Cause(
        ("LMInvalidRequestError", "BadRequestError", "InvalidRequestError", "UnprocessableEntityError"),
        "the server refused the request: change the settings of the LM or of the server as the message says",
    ),
    Cause(("LMLockTimeoutError",), "end the other process that holds the credentials of the LM"),
)
"""All known causes. Errors in the program, the metric or an adapter have none."""

_BY_ERROR: dict[str, Cause] = {}
for _cause in CAUSES:
    _BY_ERROR |= dict.fromkeys(_cause.errors, _cause)


def cause_of(error: str) -> Cause | None:
    """Return the cause for an exception's class name; None if it may be the program or the metric."""
    return _BY_ERROR.get(error)


def main_cause(errors: Iterable[str]) -> Cause | None:
    """Return the most frequent cause of these exceptions; None if it is unknown."""
    causes = Counter(map(cause_of, errors))
    return causes.most_common(1)[0][0] if causes else None


def cure_of(errors: Iterable[str], *, otherwise: str) -> str:
    """Return the cure for the most frequent cause, or `otherwise` if unknown."""
    cause = main_cause(errors)
    return otherwise if cause is None else cause.cure


def made_again(errors: Iterable[str]) -> str:
    """Describe how many calls are repeated, and the exceptions they raised before."""
    numbers = Counter(errors)
    names = ", ".join(sorted(numbers))
    calls = count(numbers.total(), "call")
    verb = "is" if numbers.total() == 1 else "are"
    return f"{calls} that failed for a reason outside the program ({names}) {verb} made again"

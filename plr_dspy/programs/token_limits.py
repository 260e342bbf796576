"""The error for a token limit that is too low for the required demos."""

from plr_dspy.errors import UserError


def too_many_tokens(
    least_tokens: int, max_tokens: int | None, min_demos: int, *, has_quotas: bool
) -> UserError:
    """Return the error for a token limit that even the shortest arrangement exceeds."""
    minimums = {}
    if min_demos:
        minimums["min_demos"] = f"{min_demos=}"
    if has_quotas:
        minimums["min_per_class"] = "min_per_class"
    reason = "the shortest demos"
    fix = "increase max_demo_tokens"
    if minimums:
        reason += f" with {' and '.join(minimums.values())}"
        fix += f", or reduce {' or '.join(minimums)}"
    return UserError(
        f"max_demo_tokens must be at least {least_tokens}, because {reason} have this many tokens; got {max_tokens}: "
        f"{fix}"
    )

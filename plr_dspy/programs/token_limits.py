"""The error if the demos that must be shown exceed the limit on tokens."""

from plr_dspy.errors import UserError


def too_many_tokens(
    least_tokens: int, max_tokens: int | None, min_demos: int, *, has_quotas: bool
) -> UserError:
    """Return an error, because even the shortest arrangement exceeds the token limit."""
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

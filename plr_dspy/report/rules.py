"""Rules that the search applies and that reports mention."""

# A candidate replaces the original only if a gain is at least this many times as likely as a loss.
MIN_ODDS = 3.0
# One of the user's programs can replace the original at lower odds, because the user already
# trusts this program. Even odds would be too low. If both programs have equal scores, the model
# may still infer a tiny gain from the scores of other candidates.
USER_PROGRAM_ODDS = 1.5
# A prompt that was scored on fewer examples is not recommended, because its score is mostly inferred from
# similar prompts.
ENOUGH_SCORED = 20
MAX_ATTEMPTS = 2  # maximum number of teacher calls per bootstrapped demo
DEFAULT_MAX_DEMOS = 8  # default of `PLFewShot.max_demos`

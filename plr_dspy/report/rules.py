"""Rules that the search applies and that reports mention."""

# By default, a candidate replaces the original only if a gain is this many times as likely as a loss.
MIN_ODDS = 3.0
# One of the user's programs can replace the original at lower odds, because the user already
# trusts this program. The odds must be above 1, because the model may infer a tiny gain from the
# scores of other candidates even if both programs have equal scores.
USER_PROGRAM_ODDS = 1.5
# A prompt scored on fewer examples than this is not recommended, because its score is mostly inferred
# from similar prompts.
ENOUGH_SCORED = 20
DEFAULT_MAX_DEMOS = 8  # default of `PLFewShot.max_demos`

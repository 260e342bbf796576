"""A model that predicts scores of orderings from known scores and log-probabilities of labels.

Searches use `ordering_model`. Modules begin with their notation; equations are those of
docs/method.md.

module          what it computes
ordering_model  estimates, gains and posterior draws of orderings
score_table     the table of scores, and means adjusted for the difficulty of examples
features        features of orderings
process         the Gaussian process of scores, Eq. 2
components      a Gaussian process's variances and posterior
effects         label bias and slope of orderings, and effects of examples, from log-probabilities
logits          logits of labels under these effects, Eq. 3
responses       the calls that a model is fitted to: scores, and log-probabilities of labels
response_model  expected scores under these logits, Eq. 4
unread          replies in which no label can be read
answers         the answers to score: as programs gave them, or calibrated, Eq. 5 and 6
gains           gains over a reference on new examples, Eq. 7 to 9
"""

"""The model of scores: it predicts scores of orderings from known scores and log-probabilities of labels.

`ordering_model.py` is what a search uses. Each module has a notation table, and equation numbers of docs/method.md.

module          what it computes
ordering_model  estimates, gains and posterior draws of orderings
score_table     scores as a table, and means that allow for the difficulty of examples
features        features of orderings
process         the Gaussian process of scores, Eq. 2
components      the variances of a Gaussian process and its posterior
effects         label bias and slope of orderings, and effects of examples, from log-probabilities
logits          logits of labels under these effects, Eq. 3
responses       expected scores of orderings, Eq. 4
unread          replies in which no label can be read
answers         the answers that count: those of programs, or calibrated ones, Eq. 5 and 6
gains           gains over a reference on new examples, Eq. 7 to 9
"""

"""A model that predicts scores of orderings from known scores and log-probabilities of labels.

Searches use `ordering_model`.

module          what it computes
ordering_model  estimates, gains and posterior draws of orderings
paired          the same of whole programs
score_table     the table of scores, and means adjusted for the difficulty of examples
features        features of orderings
process         the Gaussian process of scores, Eq. 2
components      a Gaussian process's variances and posterior
responses       the calls that a model is fitted to: scores, and log-probabilities of labels
effects         label bias and slope of orderings, and effects of examples, from log-probabilities
logits          logits of labels under these effects, Eq. 3
response_model  expected scores under these logits, Eq. 4
unread          replies in which no label can be read
answers         the answers to score: as programs gave them, or calibrated, Eq. 5 and 6
gains           gains over a reference on new examples, Eq. 7 to 9

All modules share this notation; the equations are those of docs/method.md. NaN marks unknown
cells, and arrays of candidates begin with the orderings that the model is fitted to.

symbol  code                 shape      meaning
m, c                                    numbers of fitted orderings o, and of other orderings
E, n                                    numbers of examples e, and of examples in a subset
L, d, k                                 numbers of labels, of features or contrasts, and of outputs
y       scores, call_scores  [m, E]     scores of calls
s       expected             [m, E]     scores expected from log-probabilities; 0 without them
a       example_effects      [E]        effects of examples on scores, shrunk
t       adjusted_means       [m]        effects of orderings on scores
f       process.mean         [m]        Gaussian process of the orderings' scores
l       LabelBias            [m]        label bias of orderings, measured by scores
p       logs                 [m, E, L]  log-probabilities of labels
z       contrasts            [m, E, d]  p as d = L - 1 orthonormal contrasts
b, q    label_bias, slope    [m, d], m  effects of orderings on z
        effects              [m, d+1]   the same side by side
g       directions           [E, d]     direction towards the labels with high scores
P       chances              [m, n, L]  chance of each label being the answer
M       labels.scores        [E, L]     score of each label on each example
        shares               [L]        how often each label is to be answered
F_i     features             [m, d]     one family of features
K_i     kernels              [m, m]     F_i F_i^T; for the orderings' own effects, the identity

A candidate without features, such as a whole program, is an "outsider". It has only an own
effect. `earlier` is the `state` of an earlier fit, from which a fit continues in fewer steps.
"""

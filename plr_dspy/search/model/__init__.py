"""A model that predicts scores of orderings from known scores and log-probabilities of labels.

Searches use `ordering_model` and `paired`.

module          what it computes
ordering_model  estimates, gains and posterior draws of orderings
paired          estimates and gains of whole programs
score_table     the table of scores, and mean scores adjusted for the difficulty of examples
features        features of orderings
process         the Gaussian process of scores, Eq. 2
components      variances and posterior of a Gaussian process
responses       scores and log-probabilities of the calls to which a model is fitted
effects         label bias and slope of orderings, and effects of examples, from log-probabilities
logits          logits of labels, predicted from effects, Eq. 3
response_model  expected scores, predicted from logits, Eq. 4
unread          replies in which no label can be read
answers         the answers to score, original or calibrated, Eq. 5 and 6
gains           gains over a reference on new examples, Eq. 7 to 9

All modules share this notation. Equations are numbered as in docs/method.md. NaN marks unknown
cells. In arrays of candidates, the orderings to which the model is fitted come first.

symbol  code         shape      meaning
m, c                            number of fitted orderings o; number of new orderings
E, n                            number of examples e; number of examples in a subset
L                               number of labels
d, k                            number of features or contrasts; number of outputs
y       scores       [m, E]     scores of calls
s       expected     [m, E]     scores expected from p; 0 if p is not used
a       examples     [E]        shrunk effects of examples
t       means        [m]        effects of orderings on scores
f       process      [m]        Gaussian process of scores
l       LabelBias    [m]        label bias, estimated from scores
w       direction    [C]        effect of l on the scores in each of C classes
p       logs         [m, E, L]  log-probabilities of labels
z       contrasts    [m, E, d]  p as d = L - 1 orthonormal contrasts
b       label_bias   [m, d]     label bias of orderings, estimated from z
q       slope        [m]        how much an ordering favors labels with high scores
        effects      [m, d+1]   b and q, side by side
g       directions   [E, d]     direction towards labels with high scores
P       chances      [m, n, L]  probability that each label is the answer
M       scores       [E, L]     score of each label on each example
        shares       [L]        target share of each label among the answers
F_i     features     [m, d]     one family of features
K_i     kernels      [m, m]     F_i F_i^T; the identity for individual effects

A candidate without features, such as a whole program, is called an "outsider". Its effect is
independent of all other effects. A "cell" is the call of one ordering on one example.
"""

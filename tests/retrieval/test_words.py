"""Texts compared by their words, against scikit-learn."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from plr_dspy.data import load_reviews
from plr_dspy.retrieval.words import TOKEN, word_vectors

REVIEWS = [review.review for review in load_reviews("train")[:60]]
OTHERS = [review.review for review in load_reviews("test")[:20]]
SCRIPTS = ["ภาษาไทย", "漢字 かな KANA", "İstanbul", "ΑΣ ας", "under_score 12 a", "a a A a", "", "?!"]


@pytest.mark.parametrize("texts", [REVIEWS, SCRIPTS, [*REVIEWS, *SCRIPTS, *REVIEWS[:5]]])
def test_vectors_and_cosines_are_those_of_scikit_learn(texts):
    vectorizer = TfidfVectorizer(token_pattern=TOKEN.pattern, ngram_range=(1, 2)).fit(texts)
    expected = vectorizer.transform(texts)
    vectors, cosines = word_vectors(texts)
    assert np.array_equal(vectors.toarray(), expected.toarray())
    for text in [*texts[:10], *OTHERS, *SCRIPTS]:
        (similarities,) = (vectorizer.transform([text]) @ expected.T).toarray()
        assert cosines(text) == pytest.approx(similarities, abs=1e-12)


def test_texts_without_words_are_like_no_other():
    vectors, cosines = word_vectors(["", "?!"])
    assert vectors.shape[0] == 2
    assert cosines("word").tolist() == [0.0, 0.0]

"""Final answers, as they are found in published solutions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plr_dspy.experiments.grading import boxed
from plr_dspy.experiments.tasks.solutions import after_hashes


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"\boxed{4}", "4"),
        (r"$\boxed{\frac{1}{\sqrt{2}}}$ it is", r"\frac{1}{\sqrt{2}}"),
        (r"no \boxed{1} but \boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x : x > 0 \right.}", r"\left\{ x : x > 0 \right."),
        (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}.", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"\boxed {\text{(A)}}", r"\text{(A)}"),
        (r"so \fbox{7}", "7"),
        (r"$\boxed 5$.", "5"),
        (r"$x = \boxed 1,000.$", "1,000"),
        (r"$x = \boxed\frac{1}{2}$", r"\frac{1}{2}"),
        (r"\boxedfoo{3}", ""),
        (r"\boxed", ""),
        (r"\boxed{never closed", ""),
        ("nothing", ""),
    ],
)
def test_boxed(solution, answer):
    assert boxed(solution) == answer


NESTED = st.recursive(
    st.sampled_from(["x", r"\{", r"\}", r"\\", " + ", "1"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    max_leaves=8,
)


@given(st.lists(NESTED, min_size=1, max_size=4).map("".join), st.sampled_from(["", "so ", r"\boxed{0} or "]))
def test_boxed_gives_back_what_was_put_in_a_box(content, before):
    assert boxed(before + "$\\boxed{" + content + "}$, which is } it.") == content.strip()


@pytest.mark.parametrize(
    ("solution", "answer"),
    [("a\n#### 7", "7"), ("#### 1,234 \n", "1,234"), ("#### -5", "-5"), ("#### 1\n#### 2", "2"), ("# 3", "")],
)
def test_after_hashes(solution, answer):
    assert after_hashes(solution) == answer

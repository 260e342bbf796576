"""When an answer is right: tables of pairs checked by hand, each kind with right and wrong ones."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("math_verify", reason="needs the extra 'experiments'")

from plr_dspy.experiments.grading import Checker, lenient, same_expression, same_number

NUMBERS = {
    "bare": [
        ("42", "42", True),
        ("42.", "42", True),
        ("42.0", "42", True),
        ("-3", "-3", True),
        ("\u22123", "-3", True),
        ("1/2", "0.5", True),
        ("7/2", "7", False),
        ("8", "80", False),
        ("3", "-3", False),
        ("3.5", "3", False),
    ],
    "thousands": [
        ("1,250", "1250", True),
        ("1250", "1,250", True),
        ("16,800,000", "16800000", True),
        (r"1{,}250", "1,250", True),
        ("1,250", "250", False),
        ("1.000.000", "1", False),
        ("1 000", "1000", False),
        ("2,3", "3", False),
    ],
    "units": [
        ("$1,250", "1250", True),
        ("-$5", "-5", True),
        ("12 eggs", "12", True),
        ("18 dollars per day", "18", True),
        ("50%", "50", True),
        ("$2 million", "2,000,000", True),
        ("$2 million", "2", False),
        ("14k", "14", False),
        ("2x", "2", False),
        ("5 cm", "50", False),
    ],
    "marked": [
        ("3 eggs, then 9 more.\n#### 12", "12", True),
        ("The answer is 18.", "18", True),
        ("Answer: **12**", "12", True),
        ("The answer is $18$ dollars.", "18", True),
        ("The answer is 10 (5 x 2).", "10", True),
        (r"So \boxed{7}, not 8", "7", True),
        (r"\boxed{\frac{14}{2}}", "7", True),
        ("First 3. The answer is: 4\n\nQuestion: what of 5?", "4", True),
        ("First 3. The answer is: 4\n\nQuestion: what of 5?", "5", False),
        ("The answer is not 5", "5", False),
        ("The answer is 5 or 6", "5", False),
        ("The answer is $18 per day or $20.", "18", False),
        (r"7 and \boxed{8}", "7", False),
        (r"\boxed{5", "5", False),
        ("5 apples. The answer is", "5", False),
    ],
    "worked": [
        ("5 + 3 = 8", "8", True),
        ("5*4=20", "20", True),
        ("So we have 5 apples and add 3 to get 8.", "8", True),
        ("The total cost is $1,234.50", "1234.5", True),
        ("5*4", "4", False),
        ("10^2", "2", False),
        ("x+5", "5", False),
        ("She has 20 - 5", "5", False),
        ("5 or 6", "6", False),
        ("3 to 5", "5", False),
        ("(3, 5)", "5", False),
        ("It happens 1 in 5 times", "5", False),
    ],
    "nothing": [
        ("0", "0", True),
        ("", "0", False),
        ("no idea", "5", False),
        (r"\boxed{}", "5", False),
        ("5", "", False),
        ("1/0", "1", False),
    ],
}

EXPRESSIONS = {
    "numbers": [
        ("1/2", r"\frac12", True),
        ("0.5", r"\dfrac{1}{2}", True),
        (r"-\tfrac{3}{6}", "-0.5", True),
        (r"1\frac45", "9/5", True),
        ("1 4/5", r"\frac{9}{5}", True),
        ("2^10", "1024", True),
        ("0.000587", r"5.87 \times 10^{-4}", True),
        (r"2^{-98}", r"\frac{1}{2^{98}}", True),
        ("3!", "6", True),
        ("0.33", r"\frac13", False),
        ("1.4142", r"\sqrt{2}", False),
        ("3.14", r"\pi", False),
        (r"\frac{14}{5}", r"1\frac45", False),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", False),
        (r"\frac{1}{2^{2013}}", r"2^{-2013}", True),
        (r"\frac{1}{2^{2014}}", r"\frac{1}{2^{2013}}", False),
        (r"1-2^{-401}", r"1-\frac{1}{2^{400}}", False),
        ("e^{-301}", "e^{-300}", False),
        (r"\sqrt{3+2\sqrt2}-\sqrt2", "1", True),
        ("1 2", "3", False),
        ("1 2", "12", False),
        ("-5", "5", False),
        ("1/0", "1", False),
    ],
    "thousands": [
        ("10,080", r"10,\!080", True),
        ("10080", "10{,}080", True),
        ("11111100", r"11,\! 111,\! 100", True),
        ("10, 080", "10080", False),
        ("(1,234)", "1234", False),
    ],
    "percentages": [
        ("10%", r"10\%", True),
        ("10", r"10\%", True),
        ("0.1", r"10\%", True),
        ("50 percent", "0.5", True),
        ("0.5%", "0.5", False),
        ("1", r"10\%", False),
        ("10%", "20%", False),
    ],
    "units": [
        ("5 cm", r"5\text{ cm}", True),
        ("5", r"5\mbox{ cm}^2", True),
        ("90 square units", r"90\text{ square units}", True),
        ("90 degrees", r"90^\circ", True),
        ("90", r"90^{\circ}", True),
        (r"\$5.50", "5.5", True),
        ("5.50", r"\$5.50", True),
        (r"2\cos 15^\circ", r"\frac{\sqrt6+\sqrt2}{2}", True),
        ("2", "2s", False),
        ("2s", "2", False),
        (r"5\text{ m}", "5", True),
        ("5", r"5\,\mathrm{m}", True),
        ("5 m", r"5\text{ m}", True),
        (r"\frac{1}{2}\text{ m}^2", "0.5", True),
        (r"\(5\ \text{ s}\)", "5", True),
        (r"$5~\text{g}.$", "5", True),
        ("5~L", "5", True),
        (r"x = 5\text{ m}", "5", True),
        ("5m", "5", False),
        ("5 m", "5", False),
        (r"5\text{ m}", "6", False),
        (r"2\mathrm{e}", "2", False),
        (r"2\mathrm{i}", "2", False),
        (r"\text{m}", r"\text{s}", False),
        (r"A\text{ m}", "A", False),
        ("5 million", "5", False),
        (r"\frac{\pi}{2}", r"90^\circ", False),
        ("5 inches", r"10\text{ inches}", False),
    ],
    "algebra": [
        ("x^2+3x+2", "(x+1)(x+2)", True),
        ("2 pi r", r"2 \pi r", True),
        ("sqrt(2)", r"\sqrt{2}", True),
        ("1/sqrt(3)", r"\frac{\sqrt{3}}{3}", True),
        ("sin(x)", r"\sin x", True),
        (r"1-\cos^2 t", r"\sin^2 t", True),
        ("e^(-x)", "e^{-x}", True),
        ("x^10", "x^{10}", True),
        ("x^-1", r"\frac1x", True),
        (r"\mathrm{e}^2", "e^2", True),
        ("exp(1)", "e", True),
        ("n(n-1)(n-2)!", "n!", True),
        ("2i+3", "3 + 2i", True),
        (r"\frac{5x}{2}", "2.5x", True),
        ("x^2+3x+3", "(x+1)(x+2)", False),
        ("(a+b)^2", "a^2+b^2", False),
        ("|x|", "x", False),
        ("3-2i", "3 + 2i", False),
        ("X", "x", False),
        ("x^2 + X", "x^2 + x", False),
        ("E", "e", False),
        (r"e-\gamma-3", r"e - \gamma - 1", False),
    ],
    "equations": [
        ("x = 5", "5", True),
        ("5", "x=5", True),
        ("x = 2+3 = 5", "5", True),
        ("2x+3", "y = 2x + 3", True),
        ("x+1", "f(x) = x+1", True),
        ("2x - y + 3 = 0", "y=2x+3", True),
        ("4x - 2y = -6", "y=2x+3", True),
        ("y=5", "x=5", False),
        ("x^2+y^2=5", "5", False),
        ("5", "x^2+y^2=5", False),
        ("2x - y - 3 = 0", "y=2x+3", False),
        ("x=2", "x^2=4", False),
        ("-AB = I_n", "AB = I_n", False),
        ("I_n = (I_7)^n", "I_n = (I_1)^n", False),
        ("b", "a = b", False),
    ],
    "lists": [
        ("2 or 1", "1,2", True),
        (r"\{2, 1\}", "1,2", True),
        ("{1,2,3}", r"\{3,2,1\}", True),
        ("x=2, x=3", "2,3", True),
        ("1;2", "1, 2", True),
        (r"1-\sqrt{19}, 1+\sqrt{19}", r"1 \pm \sqrt{19}", True),
        (r"x=\boxed{2} or x=\boxed{3}", "2,3", True),
        (r"-2, 5, \text{ and } 7", "7, -2, 5", True),
        (r"\{\}", r"\emptyset", True),
        (r"\boxed{\left\{1,2\right.}", r"\left\{1,2\right.", True),
        (r"1+\sqrt{19}", r"1 \pm \sqrt{19}", False),
        (r"x=\boxed{2} or x=\boxed{3}", "3", False),
        ("x=2, y=3", "2,3", False),
        (r"\{1,2,2\}", r"\{1,2\}", False),
        ("1,2", r"\{1,2,3\}", False),
        ("2", "2,3", False),
        ("-1,2", "1,-2", False),
    ],
    "tuples and intervals": [
        ("(1,2)", r"\left( 1, 2 \right)", True),
        (r"(0.5, 3]", r"\left(\frac{1}{2}, 3\right]", True),
        (r"x \in (-1,3)", "(-1,3)", True),
        ("-1 < x < 3", "(-1,3)", True),
        (r"(2,\infty)", "x>2", True),
        ("(2, oo)", r"(2,\infty)", True),
        (r"(3,\infty)\cup(-\infty,2)", r"(-\infty,2)\cup(3,\infty)", True),
        ("3 > x > -1", "-1 < x < 3", True),
        (r"\{x : x \le 2\}", r"\{ x : x \leqslant 2 \}", True),
        ("(2,1)", "(1,2)", False),
        ("[1,2]", "(1,2)", False),
        ("1,2", "(1,2)", False),
        ("(1,2,3)", "(1,2)", False),
        (r"-1 < x \leq 3", "(-1,3)", False),
        (r"x\geq 2", "x>2", False),
        ("x<2", "x>2", False),
        (r"(-\infty,2]\cup(3,\infty)", r"(-\infty,2)\cup(3,\infty)", False),
        (r"\infty", r"-\infty", False),
    ],
    "matrices": [
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
        (
            r"\begin{bmatrix}0.5 & x\\2 & 1\end{bmatrix}",
            r"\begin{pmatrix} 1/2 & x \\ 2 & 1 \end{pmatrix}.",
            True,
        ),
        (r"\left[\begin{matrix}1\\\frac12\end{matrix}\right]", r"\begin{pmatrix}1\\0.5\end{pmatrix}", True),
        (r"\begin{pmatrix}2\\1\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", False),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", False),
        ("(1,2)", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", False),
    ],
    "bases, ratios and times": [
        ("10001_2", "10001_{2}", True),
        ("1/2", "1:2", True),
        ("1:03 p.m.", r"\text{1:03 PM}", True),
        ("10001", "10001_2", False),
        ("10001_3", "10001_2", False),
        ("2:1", "1:2", False),
        ("3", "3:1", False),
        ("1:03 a.m.", r"\text{1:03 PM}", False),
        ("1:03", r"\text{1:03 PM}", False),
    ],
    "words": [
        ("(B)", "B", True),
        ("B", r"\text{(B)}", True),
        ("The answer is option B.", "B", True),
        ("an ellipse", r"\text{ellipse}", True),
        ("Abelian group", "abelian group", True),
        (r"\boxed{\text{Friday}}", r"\mbox{Friday}", True),
        ("b", "B", False),
        ("C", r"\text{(B)}", False),
        ("non-abelian group", "abelian group", False),
        ("Monday", r"\text{Friday}", False),
        ("live", "evil", False),
    ],
    "truth": [
        ("Yes", "Yes", True),
        ("yes.", r"\text{Yes}", True),
        ("True", "Yes", True),
        ("No, because the series diverges", "No", True),
        ("The limit exists.\n\nThe answer is: Yes", "Yes", True),
        (r"\boxed{\text{False}}", "False", True),
        ("The statement is false.", "False", True),
        ("No", "Yes", False),
        ("Yes and no", "Yes", False),
        ("Not true", "True", False),
        ("It isn't true.", "True", False),
        ("No. On second thought, it is true.\nYes", "No", False),
        ("There is no doubt that it converges", "No", False),
        ("Note that", "No", False),
    ],
    "solutions": [
        (r"Thus $x^2 = 4$, and the answer is $\frac{1}{2}$, since $2 \cdot 1/4$.", "0.5", True),
        ("We get 2+2=4.\n\n**Final Answer:** $4$", "4", True),
        ("Final Answer: The final answer is $5$. I hope it is correct.", "5", True),
        (r"\[ \boxed{\frac{1}{2}} \]", r"\frac12", True),
        ("So we conclude that the value is $x = 7$.", "7", True),
        ("Therefore the total number is 7.", "7", True),
        ("The answer is 7. Or is the answer 8? The answer is 8.", "7", False),
        ("We first note that 7 is prime. Therefore the value is 8.", "7", False),
        ("The answer is 5 for positive x and 6 otherwise", "5", False),
        ("The answer is $5$ or 6", "5", False),
        (r"\boxed{3} is not it, so \boxed{4}", "3", False),
    ],
    "nothing": [
        (r"\emptyset", r"\emptyset", True),
        ("", r"\frac12", False),
        ("   ", "5", False),
        (r"\boxed{}", "5", False),
        ("5", "", False),
        (r"\frac{", r"\frac{1}{2}", False),
        ("undefined", "0", False),
    ],
}

GOLD = r"""
(-1, 6)|(0,1]|(-\infty, -27) \cup [-8, -1]|\left( -\infty, \tfrac37 \right]|-1, \; -5|1 \pm \sqrt{19}|8:35 \text{ a.m.}
\{1\pm\sqrt{5},-2\}|-\frac 32|\frac 9{20}|\frac{625}4|129\frac{1}{3}|.3|10,\!080|335{,}670|58,500|\$32,\!348|14.5\%
2\cos 15^{\circ}|15\mbox{ cm}^2|6\frac{1}{6}\text{ feet}|1920\text{ ways.}|10200_3|4210_{5}|43_5.|1 : 2|\text{(E)},|B, C
\text{1:03 PM}|\text{October 30}|x \in [-2,7]|x^2 + y^2 = 13|y = 2x + 3|20x + 23y + 26z - 69 = 0|n \equiv 0 \pmod{3}
\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}|8^{8^9}|5^{11986}|\frac{1}{2^{98}}|2^{2^{\aleph_0}}|\mathbb{Z}/2\mathbb{Z}
\sum_{j=0}^{k/2} \binom{n}{k-j}|\dbinom{2n}{n}|f'(x_0) \geq 0|\|A\| \ge \|B\||a = b = c|A \subseteq B|\mathfrak{c}|iii
\log_3 4 > \sqrt[4]{2}|e^{x + e^x}|-i \sqrt{2\pi} \xi e^{-\xi^2/2}|1 < y < 6|n!|n \cdot n!|near-ring|positive definite
Yes|No|True|False|\text{Yes}|neither|C|e|i|0|-\infty|\emptyset|\vec{n}|O(2^{k^2})|(\det A)^{n-1}
Q^* A Q|5.87 \times 10^{-4}
"""
OWN_ANSWERS = [
    answer for line in GOLD.strip().splitlines() for answer in line.replace(r"\|", "\0").split("|")
]

ENDLESS = [
    ("10^{10^{10}}", "7"),
    ("10^{10^{10^{10}}}", "7"),
    ("((1000000!)!)", "x"),
    ("(1+x)^{1000000}", "1+x"),
    ("(" * 400 + "1" + ")" * 400, "2x"),
    ("9" * 100_000, "9"),
    (r"\boxed{" * 10_000, "9"),
    ("5 or " * 10_000, "9"),
]


def rows(table):
    return [
        pytest.param(*row, id=f"{kind}: {row[0]!r} for {row[1]!r}") for kind in table for row in table[kind]
    ]


@pytest.mark.parametrize(("predicted", "gold", "verdict"), rows(NUMBERS))
def test_numbers(predicted, gold, verdict):
    assert same_number(predicted, gold) is verdict


@pytest.mark.parametrize(("predicted", "gold", "verdict"), rows(EXPRESSIONS))
def test_expressions(predicted, gold, verdict):
    assert same_expression(predicted, gold) is verdict


@pytest.mark.parametrize("kind", [*NUMBERS.values(), *EXPRESSIONS.values()])
def test_each_kind_has_right_and_wrong_answers(kind):
    assert {verdict for _, _, verdict in kind} == {True, False}


@pytest.mark.parametrize("answer", [answer.replace("\0", r"\|") for answer in OWN_ANSWERS])
def test_an_answer_is_itself_however_it_is_presented(answer):
    assert same_expression(answer, answer)
    assert same_expression(f"It follows at once that it is $\\boxed{{{answer}}}$.", answer)
    assert same_expression(f"First $x = 1$.\nThe answer is ${answer}$.", answer)


def test_neighbours_in_that_list_differ():
    answers = [answer.replace("\0", r"\|") for answer in OWN_ANSWERS]
    same = {(a, b) for a, b in pairwise(answers) if same_expression(b, a)}
    assert same == set()


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
def test_any_integer_in_any_form_is_itself_and_no_other(value, step):
    for form in (
        f"{value}",
        f"{value:,}",
        f"{value}.0",
        f"The answer is {value:,}.",
        f"\\boxed{{{value}}}",
        f"x = {value}",
    ):
        assert same_number(form, f"{value:,}")
        assert not same_number(form, str(value + step))


@given(st.fractions(max_denominator=10**4), st.integers(2, 50), st.fractions(min_value=Fraction(1, 10**6)))
def test_any_fraction_is_itself_however_written_and_no_other(value, factor, step):
    top, bottom = value.numerator * factor, value.denominator * factor
    sign = "-" if top < 0 else ""
    for form in (
        f"{top}/{bottom}",
        f"{sign}\\dfrac{{{abs(top)}}}{{{bottom}}}",
        f"\\frac{{{top}}}{{{bottom}}}",
    ):
        assert same_expression(form, f"{value.numerator}/{value.denominator}")
        other = value + step
        assert not same_expression(form, f"\\frac{{{other.numerator}}}{{{other.denominator}}}")


def test_it_works_in_worker_threads():
    pairs = [(f"{k}x + {k}", f"{k}(x + {1 + wrong})", not wrong) for k in range(2, 22) for wrong in (0, 1)]
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda pair: same_expression(pair[0], pair[1]), pairs))
    assert verdicts == [verdict for _, _, verdict in pairs]


@pytest.mark.parametrize(("predicted", "gold"), ENDLESS, ids=[predicted[:20] for predicted, _ in ENDLESS])
def test_what_has_no_end_is_wrong_within_seconds_and_the_next_answer_is_judged(predicted, gold):
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(same_expression, predicted, gold).result()
        assert not pool.submit(same_number, predicted, "7").result()
        assert pool.submit(
            same_expression, f"{len(predicted)}(y+1)", f"{len(predicted)}y+{len(predicted)}"
        ).result()
    assert time.monotonic() - started < 30


def test_the_clock_ends_a_comparison():
    checker = Checker(max_seconds=0.5)
    try:
        assert checker.equal("x+x", "2x") or checker.equal("x+x", "2x")  # a first reading may take longer
        started = time.monotonic()
        assert not checker.equal("((1000000!)!)", "x")
        assert time.monotonic() - started < 3
    finally:
        checker.close()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
def test_the_reply_to_an_interrupted_comparison_is_not_taken_for_the_next():
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    checker = Checker()
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        assert checker.equal("x+x", "2x")
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            checker.equal("((1000000!)!)", "x")
        assert checker.equal("x+x", "2x")
        assert not checker.equal("x+x", "3x")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        checker.close()


@pytest.mark.parametrize(
    ("predicted", "gold", "verdict"),
    [
        ("3 apples and 4 pears make 7", "3", True),
        ("3 apples and 4 pears make 7", "5", False),
        ("It costs $1,250 in all", "1250", True),
        ("It costs $1250 in all", "1,250", True),
        ("007", "7", True),
        ("17", "7", False),
        ("10-5", "5", False),
        ("between 0.5 and 1", "0.50", True),
        ("between 1.5 and 2", "0.5", False),
        (r"is $\dfrac{1}{2}$ or $2$", r"\frac{1}{2}", True),
        ("is 1/2 or 2", r"\frac{1}{2}", True),
        (r"is $\frac{1}{3}$", r"\frac{1}{2}", False),
        (r"in \left( 0, 1 \right]", "(0,1]", True),
        ("Note that", "No", True),
        ("", "5", False),
        ("5", "", False),
    ],
)
def test_lenient(predicted, gold, verdict):
    assert lenient(predicted, gold) is verdict


@pytest.mark.parametrize(
    ("output", "gold"),
    [("The answer is 7, not 3", "3"), ("5 or 6", "6"), ("Step 1: double it. #### 8", "1"), ("2x", "2")],
)
def test_lenient_is_right_where_the_strict_measures_are_not(output, gold):
    assert lenient(output, gold)
    assert not same_number(output, gold)
    assert not same_expression(output, gold)


def test_without_math_verify_the_error_says_what_to_install():
    code = """
import sys
sys.modules["math_verify"] = None
from plr_dspy.experiments.grading import lenient, same_expression, same_number
assert same_number("1,250", "1250") and lenient("5", "5")
try:
    same_expression("5", "5")
except ImportError as error:
    assert "plr-dspy[experiments]" in str(error)
else:
    sys.exit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_answers_does_not_import_math_verify():
    code = "import sys, plr_dspy.experiments.grading; sys.exit('math_verify' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Metrics of reasoning tasks on tables of correct and incorrect answers that were checked by hand."""

import importlib.util
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import dspy
import pytest

pytest.importorskip("math_verify", reason="needs the extra 'examples'")

from paper.answers import lenient, same_expression, same_number
from paper.equivalence import Checker, require_library
from paper.tasks import TASKS

# Each gold answer is followed by correct (✓) and incorrect (✗) answers. ‖ separates items, and ⏎ is a line break.
NUMBERS = r"""
# bare
42 ✓ 42 ✓ 42. ✓ 42.0 ‖ -3 ✓ -3 ✗ 3 ‖ 0.5 ✓ 1/2 ‖ 7 ✗ 7/2 ‖ 80 ✗ 8 ‖ 3 ✗ 3.5
# thousands
1250 ✓ 1,250 ‖ 1,250 ✓ 1250 ✓ 1{,}250 ‖ 16800000 ✓ 16,800,000 ‖ 250 ✗ 1,250 ‖ 1 ✗ 1.000.000 ‖ 1000 ✗ 1 000
3 ✗ 2,3
# units
1250 ✓ $1,250 ‖ -5 ✓ -$5 ‖ 12 ✓ 12 eggs ‖ 18 ✓ 18 dollars per day ‖ 50 ✓ 50% ✗ 5 cm ‖ 2,000,000 ✓ $2 million
2 ✗ $2 million ✗ 2x ‖ 14 ✗ 14k
# marked
12 ✓ 3 eggs, then 9 more.⏎#### 12 ✓ Answer: **12**
18 ✓ The answer is 18. ✓ The answer is $18$ dollars. ✗ The answer is $18 per day or $20.
10 ✓ The answer is 10 (5 x 2). ‖ 7 ✓ So \boxed{7}, not 8 ✓ \boxed{\frac{14}{2}} ✓ so \fbox{7} ✗ 7 and \boxed{8}
1000 ✓ $x = \boxed 1,000.$
4 ✓ First 3. The answer is: 4⏎⏎Question: what of 5?
5 ✗ First 3. The answer is: 4⏎⏎Question: what of 5? ✗ The answer is not 5 ✗ The answer is 5 or 6
5 ✗ \boxed{5 ✗ 5 apples. The answer is
# worked
8 ✓ 5 + 3 = 8 ✓ So we have 5 apples and add 3 to get 8. ‖ 20 ✓ 5*4=20 ‖ 1234.5 ✓ The total cost is $1,234.50
4 ✗ 5*4 ‖ 2 ✗ 10^2 ‖ 5 ✗ x+5 ✗ She has 20 - 5 ✗ 3 to 5 ✗ (3, 5) ✗ It happens 1 in 5 times ‖ 6 ✗ 5 or 6
# nothing
0 ✓ 0 ‖ 5 ✗ no idea ✗ \boxed{} ‖ 1 ✗ 1/0
"""
EXPRESSIONS = r"""
# numbers
\frac12 ✓ 1/2 ‖ \dfrac{1}{2} ✓ 0.5 ‖ -0.5 ✓ -\tfrac{3}{6} ‖ 9/5 ✓ 1\frac45 ‖ \frac{9}{5} ✓ 1 4/5 ‖ 1024 ✓ 2^10
5.87 \times 10^{-4} ✓ 0.000587 ‖ \frac{1}{2^{98}} ✓ 2^{-98} ✗ \frac{1}{2^{99}} ‖ 6 ✓ 3! ‖ \frac13 ✗ 0.33
\sqrt{2} ✗ 1.4142 ‖ \pi ✗ 3.14 ‖ 1\frac45 ✗ \frac{14}{5} ‖ 2^{-2013} ✓ \frac{1}{2^{2013}}
\frac{1}{2^{2013}} ✗ \frac{1}{2^{2014}} ‖ 1-\frac{1}{2^{400}} ✗ 1-2^{-401} ‖ e^{-300} ✗ e^{-301}
1 ✓ \sqrt{3+2\sqrt2}-\sqrt2 ✗ 1/0 ‖ 3 ✗ 1 2 ‖ 12 ✗ 1 2 ‖ 5 ✗ -5
# thousands
10,\!080 ✓ 10,080 ‖ 10{,}080 ✓ 10080 ‖ 11,\! 111,\! 100 ✓ 11111100 ‖ 10080 ✗ 10, 080 ‖ 1234 ✗ (1,234)
# percentages
10\% ✓ 10% ✓ 10 ✓ 0.1 ✗ 1 ‖ 0.5 ✓ 50 percent ✗ 0.5% ‖ 20% ✗ 10%
# units
5\text{ cm} ✓ 5 cm ‖ 5\mbox{ cm}^2 ✓ 5 ‖ 90\text{ square units} ✓ 90 square units
90^\circ ✓ 90 degrees ✗ \frac{\pi}{2} ‖ 90^{\circ} ✓ 90 ‖ 5.5 ✓ \$5.50 ‖ \$5.50 ✓ 5.50
\frac{\sqrt6+\sqrt2}{2} ✓ 2\cos 15^\circ ‖ 2s ✗ 2 ‖ 2 ✗ 2s ✗ 2\mathrm{e} ✗ 2\mathrm{i}
5 ✓ 5\text{ m} ✓ \(5\ \text{ s}\) ✓ $5~\text{g}.$ ✓ 5~L ✓ x = 5\text{ m} ✗ 5m ✗ 5 m ✗ 5 million
5\,\mathrm{m} ✓ 5 ‖ 5\text{ m} ✓ 5 m ‖ 0.5 ✓ \frac{1}{2}\text{ m}^2 ‖ 6 ✗ 5\text{ m} ‖ \text{s} ✗ \text{m}
A ✗ A\text{ m} ‖ 10\text{ inches} ✗ 5 inches
# algebra
(x+1)(x+2) ✓ x^2+3x+2 ✗ x^2+3x+3 ‖ 2 \pi r ✓ 2 pi r ‖ \sqrt{2} ✓ sqrt(2) ‖ \frac{\sqrt{3}}{3} ✓ 1/sqrt(3)
\sin x ✓ sin(x) ‖ \sin^2 t ✓ 1-\cos^2 t ‖ e^{-x} ✓ e^(-x) ‖ x^{10} ✓ x^10 ‖ \frac1x ✓ x^-1 ‖ e^2 ✓ \mathrm{e}^2
e ✓ exp(1) ✗ E ‖ n! ✓ n(n-1)(n-2)! ‖ 3 + 2i ✓ 2i+3 ✗ 3-2i ‖ 2.5x ✓ \frac{5x}{2} ‖ a^2+b^2 ✗ (a+b)^2
x ✗ |x| ✗ X ‖ x^2 + x ✗ x^2 + X ‖ e - \gamma - 1 ✗ e-\gamma-3
# equations
5 ✓ x = 5 ✓ x = 2+3 = 5 ✗ x^2+y^2=5 ‖ x=5 ✓ 5 ✗ y=5 ‖ y = 2x + 3 ✓ 2x+3 ‖ f(x) = x+1 ✓ x+1
y=2x+3 ✓ 2x - y + 3 = 0 ✓ 4x - 2y = -6 ✗ 2x - y - 3 = 0 ‖ x^2+y^2=5 ✗ 5 ‖ x^2=4 ✗ x=2 ‖ AB = I_n ✗ -AB = I_n
I_n = (I_1)^n ✗ I_n = (I_7)^n ‖ a = b ✗ b
# lists
1,2 ✓ 2 or 1 ✓ \{2, 1\} ‖ \{3,2,1\} ✓ {1,2,3} ‖ 2,3 ✓ x=2, x=3 ✓ x=\boxed{2} or x=\boxed{3} ✗ x=2, y=3 ✗ 2
1, 2 ✓ 1;2 ‖ 1 \pm \sqrt{19} ✓ 1-\sqrt{19}, 1+\sqrt{19} ✗ 1+\sqrt{19} ‖ 7, -2, 5 ✓ -2, 5, \text{ and } 7
\emptyset ✓ \{\} ‖ \left\{1,2\right. ✓ \boxed{\left\{1,2\right.} ‖ 3 ✗ x=\boxed{2} or x=\boxed{3}
\{1,2\} ✗ \{1,2,2\} ‖ \{1,2,3\} ✗ 1,2 ‖ 1,-2 ✗ -1,2
# tuples and intervals
\left( 1, 2 \right) ✓ (1,2) ‖ \left(\frac{1}{2}, 3\right] ✓ (0.5, 3]
(-1,3) ✓ x \in (-1,3) ✓ -1 < x < 3 ✗ -1 < x \leq 3 ‖ x>2 ✓ (2,\infty) ✗ x\geq 2 ✗ x<2 ‖ (2,\infty) ✓ (2, oo)
(-\infty,2)\cup(3,\infty) ✓ (3,\infty)\cup(-\infty,2) ✗ (-\infty,2]\cup(3,\infty) ‖ -1 < x < 3 ✓ 3 > x > -1
\{ x : x \leqslant 2 \} ✓ \{x : x \le 2\} ‖ (1,2) ✗ (2,1) ✗ [1,2] ✗ 1,2 ✗ (1,2,3) ‖ -\infty ✗ \infty
# matrices
\begin{pmatrix} 1 \\ 2 \end{pmatrix} ✓ \begin{pmatrix}1\\2\end{pmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix} ✗ \begin{pmatrix}2\\1\end{pmatrix} ✗ \begin{pmatrix}1&2\end{pmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix} ✗ (1,2)
\begin{pmatrix} 1/2 & x \\ 2 & 1 \end{pmatrix}. ✓ \begin{bmatrix}0.5 & x\\2 & 1\end{bmatrix}
\begin{pmatrix}1\\0.5\end{pmatrix} ✓ \left[\begin{matrix}1\\\frac12\end{matrix}\right]
# bases, ratios and times
10001_{2} ✓ 10001_2 ‖ 1:2 ✓ 1/2 ✗ 2:1 ‖ \text{1:03 PM} ✓ 1:03 p.m. ✗ 1:03 a.m. ✗ 1:03
10001_2 ✗ 10001 ✗ 10001_3 ‖ 3:1 ✗ 3
# words
B ✓ (B) ✓ The answer is option B. ✗ b ‖ \text{(B)} ✓ B ✗ C ‖ \text{ellipse} ✓ an ellipse
abelian group ✓ Abelian group ✗ non-abelian group ‖ \mbox{Friday} ✓ \boxed{\text{Friday}}
\text{Friday} ✗ Monday ‖ evil ✗ live
# truth
Yes ✓ Yes ✓ True ✓ The limit exists.⏎⏎The answer is: Yes ✗ No ✗ Yes and no ‖ \text{Yes} ✓ yes.
No ✓ No, because the series diverges ✗ No. On second thought, it is true.⏎Yes
No ✗ There is no doubt that it converges ✗ Note that ‖ False ✓ \boxed{\text{False}} ✓ The statement is false.
True ✗ Not true ✗ It isn't true.
# solutions
0.5 ✓ Thus $x^2 = 4$, and the answer is $\frac{1}{2}$, since $2 \cdot 1/4$.
4 ✓ We get 2+2=4.⏎⏎**Final Answer:** $4$ ‖ 5 ✓ Final Answer: The final answer is $5$. I hope it is correct.
5 ✗ The answer is 5 for positive x and 6 otherwise ✗ The answer is $5$ or 6
\frac12 ✓ \[ \boxed{\frac{1}{2}} \]
7 ✓ So we conclude that the value is $x = 7$. ✓ Therefore the total number is 7.
7 ✗ The answer is 7. Or is the answer 8? The answer is 8.
7 ✗ We first note that 7 is prime. Therefore the value is 8. ‖ 3 ✗ \boxed{3} is not it, so \boxed{4}
# nothing
\emptyset ✓ \emptyset ‖ 5 ✗ \boxed{} ‖ \frac{1}{2} ✗ \frac{ ‖ 0 ✗ undefined
"""
BLANK_NUMBERS = [("\u22123", "-3", True), ("", "0", False), ("5", "", False)]
BLANK_EXPRESSIONS = [("", "\\frac12", False), ("   ", "5", False), ("5", "", False)]

GOLD = r"""
(-1, 6)|(0,1]|(-\infty, -27) \cup [-8, -1]|\left( -\infty, \tfrac37 \right]|-1, \; -5|1 \pm \sqrt{19}|8:35 \text{ a.m.}
\{1\pm\sqrt{5},-2\}|-\frac 32|\frac 9{20}|\frac{625}4|129\frac{1}{3}|.3|10,\!080|335{,}670|58,500|\$32,\!348|14.5\%
2\cos 15^{\circ}|15\mbox{ cm}^2|6\frac{1}{6}\text{ feet}|1920\text{ ways.}|10200_3|4210_{5}|43_5.|1 : 2|\text{(E)},|B, C
\text{1:03 PM}|\text{October 30}|x \in [-2,7]|x^2 + y^2 = 13|y = 2x + 3|20x + 23y + 26z - 69 = 0|n \equiv 0 \pmod{3}
\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}|8^{8^9}|\mathbb{Z}/2\mathbb{Z}|5^{11986}|\frac{1}{2^{98}}|2^{2^{\aleph_0}}
\sum_{j=0}^{k/2} \binom{n}{k-j}|\dbinom{2n}{n}|f'(x_0) \geq 0|\|A\| \ge \|B\||a = b = c|A \subseteq B|\mathfrak{c}|iii
\log_3 4 > \sqrt[4]{2}|e^{x + e^x}|-i \sqrt{2\pi} \xi e^{-\xi^2/2}|1 < y < 6|n!|n \cdot n!|near-ring|positive definite
Yes|No|True|False|\text{Yes}|neither|C|e|i|0|-\infty|\emptyset|\vec{n}|O(2^{k^2})|(\det A)^{n-1}
Q^* A Q|5.87 \times 10^{-4}
"""
OWN_ANSWERS = re.split(r"(?<!\\)[|]|\n", GOLD.strip())

ENDLESS = [("10^{10^{10}}", "7"), ("9" * 100_000, "9"), (r"\boxed{" * 10_000, "9"), ("5 or " * 10_000, "9")]


def rows(table, blank):
    lines = [line for line in table.strip().splitlines() if not line.startswith("# ")]
    pairs = []
    for item in " ‖ ".join(lines).split(" ‖ "):
        gold = re.split(" [✓✗] ", item)[0]
        for answer in re.findall(r"[✓✗] (?:(?! [✓✗] ).)+", item):
            predicted = answer[2:].replace("⏎", "\n")
            pairs.append((predicted, gold, answer[0] == "✓"))
    return [pytest.param(*row, id=f"{row[0]!r} for {row[1]!r}") for row in [*pairs, *blank]]


@pytest.mark.parametrize(("predicted", "gold", "verdict"), rows(NUMBERS, BLANK_NUMBERS))
def test_numbers(predicted, gold, verdict):
    assert same_number(predicted, gold) is verdict


@pytest.mark.parametrize(("predicted", "gold", "verdict"), rows(EXPRESSIONS, BLANK_EXPRESSIONS))
def test_expressions(predicted, gold, verdict):
    assert same_expression(predicted, gold) is verdict


@pytest.mark.parametrize("answer", OWN_ANSWERS)
def test_an_answer_equals_itself_in_every_presentation(answer):
    assert same_expression(answer, answer)
    assert same_expression(f"It follows at once that it is $\\boxed{{{answer}}}$.", answer)
    assert same_expression(f"First $x = 1$.\nThe answer is ${answer}$.", answer)


def test_neighboring_answers_in_the_list_differ():
    assert not [(a, b) for a, b in pairwise(OWN_ANSWERS) if same_expression(b, a)]


@pytest.mark.parametrize(("predicted", "gold"), ENDLESS, ids=[predicted[:20] for predicted, _ in ENDLESS])
def test_an_endless_comparison_ends_within_seconds_and_the_next_comparison_works(predicted, gold):
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(same_expression, predicted, gold).result()
        assert not pool.submit(same_number, predicted, "7").result()
        size = len(predicted)
        assert pool.submit(same_expression, f"{size}(y+1)", f"{size}y+{size}").result()
    assert time.monotonic() - started < 30


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX timers")
def test_a_comparison_times_out_and_the_reply_to_an_interrupted_comparison_is_discarded():
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    checker = Checker()
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        assert checker.equal("x+x", "2x")
        checker.max_seconds = 0.5
        started = time.monotonic()
        assert not checker.equal("((1000000!)!)", "x")
        assert time.monotonic() - started < 2.5
        checker.max_seconds = 60.0
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


LENIENT = r"""
3 ✓ 3 apples and 4 pears make 7 ‖ 1250 ✓ It costs $1,250 in all ‖ 7 ✗ 17 ‖ 5 ✗ 10-5 ‖ 0.50 ✓ between 0.5 and 1
\frac{1}{2} ✓ is $\dfrac{1}{2}$ or $2$ ✗ is $\frac{1}{3}$ ‖ (0,1] ✓ in \left( 0, 1 \right] ‖ No ✓ Note that
"""


@pytest.mark.parametrize(("predicted", "gold", "verdict"), rows(LENIENT, [("5", "", False)]))
def test_lenient(predicted, gold, verdict):
    assert lenient(predicted, gold) is verdict


def test_without_math_verify_the_error_names_the_extra_to_install(monkeypatch):
    require_library.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"plr-dspy\[examples\]"):
        same_expression("5", "5")
    assert same_number("1,250", "1250")


@pytest.mark.parametrize(
    ("name", "metric", "gold", "answer", "right"),
    [
        ("mr", "lenient", "positive", "very positive", False),
        ("gsm8k", "strict", "1,234", "1234 - 1 = 1233", False),
        ("gsm8k", "lenient", "1,234", "1234 - 1 = 1233", True),
        ("math500", "lenient", r"\frac{1}{2}", r"Half, that is \frac{1}{2}, or 2", True),
        ("deepmath", "strict", "No", "Note that 3 is odd", False),
        ("deepmath", "lenient", "No", "Note that 3 is odd", True),
        ("gsm8k", "strict", "5", None, False),
    ],
)
def test_metrics_of_tasks(name, metric, gold, answer, right):
    task = TASKS[name]
    example = dspy.Example({task.input_field: "x", task.output_field: gold})
    assert task.metric(metric)(example, dspy.Prediction(**{task.output_field: answer})) is right

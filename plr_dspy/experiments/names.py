"""Names of the paper's tasks and methods, and what its ablations vary: light, for the command line begins with them.

"PLR-C" is the paper's search with a mixture of C Plackett-Luce models.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

Format: TypeAlias = Literal["plain", "chat"]
MetricName: TypeAlias = Literal["strict", "lenient"]

LOCAL = "local"
"""Name of the local model, in place of a litellm name."""

RESULTS = "results.jsonl"
"""Name of the file with the results, in the folder of an experiment."""

CLASSIFICATION = ("mr", "sst5", "trec", "agnews", "subj")
"""The tasks whose answers are labels, in the order of the paper's tables."""

REASONING = ("gsm8k", "math500", "deepmath")
"""The tasks whose answers are open."""

LABEL_METHODS = ("LocalE", "GlobalE", "PDO-FewShot", "PDO-FewShotU", "PDO-FewShotUP", "DEmO")
"""Methods that read label probabilities: they do not apply where answers are no labels."""

METHODS = ("Static", "Top-K", *LABEL_METHODS, "PLR-EMA", "PLR-1", "PLR-4", "Ours")
"""The methods of the paper's tables, in its order."""

RANKING = "Ranking"
"""In place of a method: the paper's search with one Plackett-Luce, and then all orders on the held-out examples."""

PAPER_ELITE_FRACTION = 0.2
"""Share of the orderings that a step of the paper's search learns from."""

ABLATIONS: dict[str, dict[str, float]] = {
    "components": {f"PLR-{count}": count for count in (1, 2, 4, 8, 16, 32, 64)},
    "weighted": {"PLR-4": False, "PLR-4 weighted": True},
    "elite_fraction": {
        "PLR-4 elites=0.1": 0.1,
        "PLR-4": PAPER_ELITE_FRACTION,
        "PLR-4 elites=0.3": 0.3,
        "PLR-4 elites=0.5": 0.5,
    },
}
"""The paper's ablations: what varies, and the value that each method of it stands for."""

PAPER_METHOD = re.compile(
    r"PLR-(?P<update>EMA|[1-9]\d*)(?P<weighted> weighted)?(?: elites=(?P<elites>0?\.\d+|1))?"
)
"""What the names of the paper's search and its variants are made of."""


def check_method(method: str) -> None:
    """Raise unless a method has this name.

    Raises:
        ValueError: with the names there are.
    """
    match = PAPER_METHOD.fullmatch(method)
    if method not in METHODS and (match is None or float(match["elites"] or 1) == 0.0):
        raise ValueError(
            f"method must be one of {list(METHODS)}, or PLR-C for a mixture of C, also with ' weighted' and "
            f"' elites=0.3' after it; got {method!r}"
        )


def applies(method: str, task: str) -> bool:
    """Whether the method can order demos of the task: those that read label probabilities need labels."""
    return method not in LABEL_METHODS or task not in REASONING

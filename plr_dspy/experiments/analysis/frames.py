"""The results of one experiment as a data frame, checked to be comparable."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from plr_dspy.experiments.names import METHODS
from plr_dspy.experiments.runs.results import Result
from plr_dspy.experiments.tasks.tasks import TASKS
from plr_dspy.statistics.comparisons import mean_interval


def frame_of(results: Sequence[Result]) -> pd.DataFrame:
    """Make a frame of the results of one experiment.

    Returns:
        The fields of `Result` and "run", one row for each run, by number of demos, task, method and seed. Tasks and
        methods are categories in the order of the paper's tables; other ones come last, by name.

    Raises:
        ValueError: when there are no results, when they are of several models or prompt formats, when two are of one
            run, or when the runs of one task and seed did not meet the same examples.
    """
    if not results:
        raise ValueError("results must hold at least one record; got none: run a part of the grid first")
    frame = pd.DataFrame([vars(result) | {"run": str(result.run)} for result in results])
    kinds = sorted(set(zip(frame.model, frame.format, strict=True)))
    if len(kinds) > 1:
        raise ValueError(
            f"results must be of one model and one prompt format; got {kinds}: make a table of each by itself"
        )
    if frame.run.duplicated().any():
        twice = frame.run[frame.run.duplicated()].iloc[0]
        raise ValueError(f"results must hold one record for each run; got two of {twice}: remove one")
    first: dict[tuple[str, int], Result] = {}
    for result in results:
        other = first.setdefault((result.task, result.seed), result)
        same = "all runs of one task and seed must be scored on the same examples"
        if len(result.scores) != len(other.scores):
            raise ValueError(
                f"{same}; got {len(result.scores)} scores of {result.run} and {len(other.scores)} of {other.run}: "
                "make them with the same settings"
            )
        if result.data and other.data and result.data != other.data:
            raise ValueError(
                f"{same}; those of {result.run} and {other.run} differ: make them with the same data"
            )
    for name, known in (("task", TASKS), ("method", METHODS)):
        frame[name] = pd.Categorical(frame[name], in_order(set(frame[name]), known), ordered=True)
    return frame.sort_values(["num_demos", "task", "method", "seed"], ignore_index=True)


def in_order(names: Collection[str], known: Collection[str]) -> list[str]:
    """Sort names in the order of the known ones; unknown ones come last, by name."""
    return [name for name in known if name in names] + sorted(set(names) - set(known))


def mean_intervals(groups: Any, confidence: float = 0.95) -> pd.DataFrame:
    """Summarize groups of numbers, one for each seed.

    Args:
        groups: A pandas `SeriesGroupBy`.
        confidence: Level of the intervals, in (0, 1).

    Returns:
        For each group the "mean", the ends "low" and "high" of its Student-t interval (NaN for one seed), and the
        number of "seeds".
    """

    def end(which: int) -> Any:
        return lambda values: (
            mean_interval(list(values), confidence)[which] if len(values) > 1 else float("nan")
        )

    return groups.agg(mean=fmean, low=end(0), high=end(1), seeds="size")


def setting_notes(results: Sequence[Result]) -> list[str]:
    """A sentence that names the settings and versions that are not the same in all results; none if there are none."""
    described = [{**r.settings, **{f"version of {k}": v for k, v in r.versions.items()}} for r in results]
    names = sorted({name for settings in described for name in settings})
    differing = [name for name in names if any(s.get(name) != described[0].get(name) for s in described)]
    return [f"Not all runs were made alike; they differ in: {', '.join(differing)}."] if differing else []


def check_confidence(confidence: float) -> None:
    """Raise `ValueError` unless this is a level of confidence."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1); got {confidence!r}: pass 0.95 for 95 %")


def counted(count: int, noun: str) -> str:
    """A number with its noun, such as "1 demo" and "8 demos"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"

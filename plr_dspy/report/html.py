"""Writes a report as one page of HTML that needs nothing else, and as a few lines of HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from plr_dspy.report.captions import class_names, demo_captions, shorten
from plr_dspy.report.schema import SlotReport
from plr_dspy.report.text import (
    calibration,
    calls_by_phase,
    dollars,
    learnt,
    noun,
    original_name,
    overview,
    prompt_count,
    verdict,
)

if TYPE_CHECKING:
    from plr_dspy.report.report import Report


def page(report: Report) -> str:
    """Write the whole page.

    Raises:
        ImportError: without matplotlib or Jinja2.
    """
    from plr_dspy.report.figures import panels  # isort: skip
    from jinja2 import Environment, PackageLoader, StrictUndefined

    versions = {"plr_dspy": report.plr_dspy_version, "dspy": report.dspy_version}
    environment = Environment(
        loader=PackageLoader("plr_dspy.report", "."),
        autoescape=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html").render(
        report=report,
        title=f"{report.settings.get('method', 'PLReorder')}: the order of the demos",
        overview=overview(report),
        key_figures={
            **_scores(report),
            "program calls": f"{report.program_calls['total']:,}",
            **_cost(report),
            "distinct prompts": prompt_count(report.distinct_prompts),
            "time": f"{report.seconds:,.0f} s",
        },
        sentences=[_sentence(line) for line in [*verdict(report), *learnt(report), *calibration(report)]],
        panels=panels(report),
        columns=_columns,
        calls={**calls_by_phase(report), "in total": report.program_calls["total"]},
        settings={name: _setting(value) for name, value in {**report.settings, **versions}.items()},
        table=_table,
    )


def excerpt(report: Report) -> str:
    """Write what notebooks show: a sentence, and a small table."""
    rows: dict[str, int | str] = {**_scores(report)}
    if (c := report.comparison) is not None and c.gain:
        rows[f"{100 * c.confidence:.0f} % interval"] = f"[{c.interval[0]:+.3f}, {c.interval[1]:+.3f}]"
    rows["program calls"] = report.program_calls["total"]
    rows |= _cost(report)
    rows |= {f"order of {slot.predictor}": " ".join(map(str, slot.ordering)) for slot in report.slots}
    sentence = _sentence([report.stopped, *verdict(report)][-1])
    method = escape(str(report.settings.get("method", "PLReorder")))
    return f"<p><b>{method}.</b> {escape(sentence)}</p>{_table(rows.items())}"


def _sentence(line: str) -> str:
    """Begin a line with a capital letter, and end it with a full stop."""
    return f"{line[:1].upper()}{line[1:]}."


def _cost(report: Report) -> dict[str, str]:
    """Name the cost, where it is known."""
    return {} if report.cost is None else {"cost": dollars(report.cost)}


def _scores(report: Report) -> dict[str, str]:
    """Name the original's and the chosen one's scores, and the gain."""
    if (c := report.comparison) is None:
        return {}
    return {
        original_name(report): f"{c.original:.3f}",
        f"chosen {noun(report)}": f"{c.chosen:.3f}",
        "gain": f"{c.gain:+.3f}",
    }


def _columns(slot: SlotReport) -> dict[str, list[dict[str, Any]]]:
    """Lay out the demos in both orders, each with how far it moved; up is to the beginning of the prompt.

    A chosen demo that the student did not show has its origin instead.
    """
    captions, classes = demo_captions(slot), class_names(slot)

    def card(demo: int, move: str) -> dict[str, Any]:
        return {
            "demo": demo,
            "answer": "" if (number := slot.classes[demo]) is None else shorten(classes[number], 24),
            "caption": shorten(captions[demo], 160),
            "fields": slot.demos[demo],
            "move": move,
        }

    if slot.is_pool or not slot.original:
        origins = slot.origins or ["added"] * slot.num_demos
        news = {demo: origins[demo] for demo in slot.ordering if demo not in slot.original}
        return {
            "Original order": [card(demo, "") for demo in slot.original],
            "Chosen order": [card(demo, news.get(demo, "")) for demo in slot.ordering],
        }

    def moved(demo: int, word: str, other: int) -> dict[str, Any]:
        steps = slot.ordering.index(demo) - demo
        return card(demo, f"{word} {other + 1} {'▲' if steps < 0 else '▼'}{abs(steps)}" if steps else "")

    return {
        "Original order": [moved(demo, "now", slot.ordering.index(demo)) for demo in slot.original],
        "Chosen order": [moved(demo, "was", demo) for demo in slot.ordering],
    }


def _table(rows: Iterable[tuple[str, int | str]]) -> str:
    """Write a table of two columns: names, and numbers or text."""

    def cell(value: int | str) -> str:
        return f"<td>{escape(value)}</td>" if isinstance(value, str) else f'<td class="number">{value:,}</td>'

    lines = "".join(f'<tr><th scope="row">{escape(name)}</th>{cell(value)}</tr>' for name, value in rows)
    return f'<div class="scroll"><table>{lines}</table></div>'


def _setting(value: Any) -> str:
    """Write a setting as people do."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_setting(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_setting, value))
    return "none" if value is None else str(value)

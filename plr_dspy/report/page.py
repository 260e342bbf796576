"""Writes a report as one page of HTML that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from plr_dspy.report import text

if TYPE_CHECKING:
    from plr_dspy.report.data import Report, SlotReport

CSS = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
pre, dd { white-space: pre-wrap; }
img { width: 100%; background: #fff; }
summary { cursor: pointer; }
"""


def page(report: Report) -> str:
    """Write the whole page: the text, the figure, and the demos of each predictor.

    Raises:
        ImportError: without matplotlib.
    """
    from plr_dspy.report.figure import data_uri

    what = "choice of demos" if text.noun(report) == "arrangement" else "order of the demos"
    title = escape(f"{report.settings.get('method', 'PLReorder')}: the {what}")
    body = "\n".join(map(_demos, report.slots))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{CSS}</style>
</head>
<body>
<h1>{title}</h1>
<pre>{escape(text.details(report))}</pre>
<img alt="Scores by program calls, and demos by place" src="{data_uri(report)}">
{body}
</body>
</html>
"""


def _demos(slot: SlotReport) -> str:
    """List the demos that a predictor shows, in their order; each opens to its fields."""
    items = []
    for number in slot.ordering:
        demo = slot.demos[number]
        origin = f" ({slot.origins[number]})" if slot.origins else ""
        fields = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in demo.items())
        start = " ".join(next(iter(demo.values()), "").split())[:120]
        summary = f"demo {number}{escape(origin)}: {escape(start)}"
        items.append(f"<li><details><summary>{summary}</summary><dl>{fields}</dl></details></li>")
    shown = f"{len(slot.ordering)} of {slot.num_demos} demos, as the prompt shows them"
    listed = "\n".join(items)
    return f"<h2>{escape(slot.predictor)}: {shown}</h2>\n<ul>\n{listed}\n</ul>"

"""A report as one page of HTML that needs nothing else, and as a few lines of it for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from plr_dspy.report.captions import class_names, demo_captions, shortened
from plr_dspy.report.figures import panels, single
from plr_dspy.report.schema import Findings, SlotReport
from plr_dspy.report.text import calls_by_phase, overview, readable, verdict

LONGEST_CAPTION = 160


def page(findings: Findings) -> str:
    """The whole page.

    Raises:
        ImportError: without matplotlib.
    """
    pictures: dict[str | None, list[str]] = {}
    for i, panel in enumerate(panels(findings)):
        pictures.setdefault(panel.predictor, []).append(single(panel, name=f"picture{i}"))
    style = (resources.files("plr_dspy.report") / "page.css").read_text(encoding="utf-8")
    title = f"{findings.settings.get('method', 'PLReorder')}: the order of the demos"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(overview(findings))}</p>',
        _key_figures(findings),
        *(f"<p>{escape(_sentence(line))}</p>" for line in verdict(findings)),
        _pictures(pictures.get(None, [])),
        *(part for slot in findings.slots for part in _predictor(slot, pictures.get(slot.predictor, []))),
        *_accounts(findings),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def excerpt(findings: Findings) -> str:
    """What notebooks show: a sentence, and a small table."""
    rows: list[tuple[str, int | str]] = [*_scores(findings)]
    if (c := findings.comparison) is not None and c.gain:
        rows.append((f"{100 * c.confidence:.0f} % interval", f"[{c.interval[0]:+.3f}, {c.interval[1]:+.3f}]"))
    rows.append(("program calls", findings.program_calls["total"]))
    rows += [(f"order of {slot.predictor}", " ".join(map(str, slot.ordering))) for slot in findings.slots]
    sentences = " ".join(_sentence(line) for line in verdict(findings)[-1:]) or _sentence(findings.stopped)
    method = escape(str(findings.settings.get("method", "PLReorder")))
    return f"<p><b>{method}.</b> {escape(sentences)}</p>{_table(rows)}"


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}."


def _scores(findings: Findings) -> Iterable[tuple[str, str]]:
    if (c := findings.comparison) is not None:
        yield "original order", f"{c.original:.3f}"
        yield "chosen order", f"{c.chosen:.3f}"
        yield "gain", f"{c.gain:+.3f}"


def _key_figures(findings: Findings) -> str:
    figures = [
        *_scores(findings),
        ("program calls", f"{findings.program_calls['total']:,}"),
        ("distinct prompts", readable(findings.distinct_prompts)),
        ("time", f"{findings.seconds:,.0f} s"),
    ]
    items = "".join(f"<li>{escape(name)}<b>{escape(value)}</b></li>" for name, value in figures)
    return f'<ul class="figures">{items}</ul>'


def _pictures(pictures: Sequence[str]) -> str:
    return (
        f'<div class="pictures">{"".join(f"<div>{picture}</div>" for picture in pictures)}</div>'
        if pictures
        else ""
    )


def _predictor(slot: SlotReport, pictures: Sequence[str]) -> Iterable[str]:
    """A predictor's pictures, and its demos in both orders."""
    yield f"<h2>Demos of {escape(slot.predictor)}</h2>"
    if not slot.blocks:
        yield "<p>Every order of them gives the same prompt.</p>"
    yield _pictures(pictures)
    before = {demo: demo for demo in range(slot.num_demos)}
    after = {demo: position for position, demo in enumerate(slot.ordering)} or before
    cards = _cards(slot)

    def column(title: str, own: Mapping[int, int], other: Mapping[int, int], word: str) -> str:
        items = []
        for demo in sorted(own, key=own.__getitem__):
            way = (
                f"{word} {other[demo] + 1} {_arrow(before[demo], after[demo])}"
                if own[demo] != other[demo]
                else ""
            )
            items.append(f"<li><span>{own[demo] + 1}</span>{_card(*cards[demo], way)}</li>")
        return f"<section><h3>{title}</h3><ol>{''.join(items)}</ol></section>"

    moved = sum(before[demo] != after[demo] for demo in before)
    yield f'<p class="soft">{moved} of {slot.num_demos} demos moved. Open one to read it.</p>'
    columns = [column("Original order", before, after, "now"), column("Chosen order", after, before, "was")]
    yield f'<div class="orders">{"".join(columns)}</div>'


def _arrow(start: int, end: int) -> str:
    """How far a demo went; up is to the beginning of the prompt."""
    return f"{'▲' if end < start else '▼'}{abs(end - start)}"


def _cards(slot: SlotReport) -> list[tuple[str, str]]:
    """What is seen of each demo, and what opening it shows."""
    classes = class_names(slot)
    cards = []
    for demo, caption in enumerate(demo_captions(slot)):
        number = slot.classes[demo]
        answer = (
            "" if number is None else f'<span class="tag">{escape(shortened(classes[number], 24))}</span>'
        )
        seen = f'<span class="tag">demo {demo}</span>{answer}'
        text = f'<span class="text">{escape(shortened(caption, LONGEST_CAPTION))}</span>'
        fields = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in slot.demos[demo].items())
        cards.append((seen, f"{text}</summary><dl>{fields}</dl>"))
    return cards


def _card(head: str, rest: str, way: str) -> str:
    kind, tag = (' class="moved"', f'<span class="tag way">{way}</span>') if way else ("", "")
    return f"<details{kind}><summary>{head}{tag}{rest}</details>"


def _accounts(findings: Findings) -> Iterable[str]:
    """Calls, tokens, errors and settings."""
    if calls := calls_by_phase(findings):
        yield "<h2>Program calls</h2>"
        yield _table([*calls.items(), ("in total", findings.program_calls["total"])])
    if findings.tokens:
        yield "<h2>Tokens</h2>"
        for model, counts in findings.tokens.items():
            yield f"<p>{escape(model)}</p>{_table(counts.items())}"
    if findings.errors:
        yield "<h2>Errors</h2>"
        yield _table(
            (
                f"{error.count:,} {error.outcome}",
                f"{error.type}: {error.message} ({', '.join(error.examples)})",
            )
            for error in findings.errors
        )
    yield "<h2>Settings</h2>"
    versions = {"plr_dspy": findings.plr_dspy_version, "dspy": findings.dspy_version}
    yield _table((name, _plain(value)) for name, value in {**findings.settings, **versions}.items())


def _table(rows: Iterable[tuple[str, int | str]]) -> str:
    """Two columns: names, and numbers or text."""

    def cell(value: int | str) -> str:
        return f"<td>{escape(value)}</td>" if isinstance(value, str) else f'<td class="number">{value:,}</td>'

    lines = "".join(f'<tr><th scope="row">{escape(name)}</th>{cell(value)}</tr>' for name, value in rows)
    return f'<div class="scroll"><table>{lines}</table></div>'


def _plain(value: Any) -> str:
    """Settings as people write them."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return "none" if value is None else str(value)

"""Pictures that need no window: matplotlib figures, and SVG for pages. Import it where something is drawn."""

from __future__ import annotations

import html
import io
import re
import warnings

import matplotlib
from matplotlib.figure import Figure


class Picture(Figure):
    """A figure that notebooks show, though pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def new_picture(width: float, height: float) -> Picture:
    """An empty picture, in inches, whose parts are laid out so that none is cut."""
    return Picture(figsize=(width, height), layout="constrained")


def svg(picture: Figure, *, name: str, title: str, ink: str) -> str:
    """The picture as an element of a page, without background: it takes the page's colours and fonts.

    Args:
        picture: What to write.
        name: Letters and digits that no other picture of the page has.
        title: What it shows.
        ink: The colour that becomes that of the page's text.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        # Signs that matplotlib has no shape for are left to the browser's fonts.
        warnings.filterwarnings("ignore", message="Glyph")
        picture.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = re.sub(r"<!--.*?-->", "", text[text.index("<svg") :], flags=re.S)
    text = re.sub(r"<[^>]*>", lambda tag: _own(tag.group().replace(ink, "currentColor"), name), text)
    width = 96 * picture.get_figwidth()
    frame = f'<svg role="img" aria-label="{html.escape(title)}" style="max-width: {width:.0f}px"'
    return re.sub(r'^<svg width="[^"]*" height="[^"]*"', lambda _: frame, text)


def _own(tag: str, name: str) -> str:
    """A tag with names that only this picture has."""
    tag = re.sub(r' xmlns(:xlink)?="[^"]*"', "", tag)
    return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", tag)

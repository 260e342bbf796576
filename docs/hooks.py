"""What the site adds to the pages of this folder: the README and the changelog, which stay where they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
ADDED = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository and their pages."""


def on_files(files: Files, config: Any) -> Files:
    """Add them, with their links to docs/ as those of a page."""
    for name, page in ADDED.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to them: from ../README.md, which a reader of the repository follows, to the page."""
    for name, page in ADDED.items():
        markdown = re.sub(rf"\]\(\.\./{re.escape(name)}(?=[#)])", f"]({page}", markdown)
    return markdown

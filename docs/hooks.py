"""What the site adds to the pages of this folder: README, changelog, guide for contributors, notebooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[1]
ADDED = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository and their pages."""


def on_files(files: Files, config: Any) -> Files:
    """Add them, with their links to docs/ and to each other as those of a page."""
    for name, page in ADDED.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        for other, page_of_other in ADDED.items():
            text = re.sub(rf"\]\({re.escape(other)}(?=[#)])", f"]({page_of_other}", text)
        files.append(File.generated(config, page, content=text))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, resources = MarkdownExporter().from_filename(str(path), {"unique_key": path.stem})
        text = text.replace("](../docs/", "](../").replace(".ipynb)", ".md)")
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to them: from the files, which a reader of the repository follows, to the pages."""
    for name, page in ADDED.items():
        markdown = re.sub(rf"\]\(\.\./{re.escape(name)}(?=[#)])", f"]({page}", markdown)
    return re.sub(r"\]\((?:\.\./)?notebooks/(\w+)\.ipynb\)", r"](notebooks/\1.md)", markdown)

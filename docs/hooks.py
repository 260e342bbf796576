"""Hooks of MkDocs that add other files of the repository, the notebooks and llms.txt to the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[1]
ADDED = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SKILL.md": "skill.md",
}
"""Files of the repository, and the names of their pages."""


def on_files(files: Files, config: Any) -> Files:
    """Add the files and notebooks as pages, and change their links to match."""
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
    """Change links to the added files, which work in the repository, into links to their pages."""
    for name, page in ADDED.items():
        markdown = re.sub(rf"\]\(\.\./{re.escape(name)}(?=[#)])", f"]({page}", markdown)
    return re.sub(r"\]\((?:\.\./)?notebooks/(\w+)\.ipynb\)", r"](notebooks/\1.md)", markdown)


def on_post_build(config: Any) -> None:
    """Write llms.txt for coding assistants, in the format of llmstxt.org, with a sentence about each page."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", "", "## Docs", ""]
    for path in sorted(Path(config["docs_dir"]).glob("*.md"), key=lambda path: path.stem != "index"):
        title, *paragraphs = path.read_text(encoding="utf-8").split("\n\n")
        first = next(each for each in paragraphs if each[:1].isalpha() or each[0] == "`" != each[1])
        sentence = re.sub(r"\]\([^)]+\)|\[", "", first).replace("\n", " ").split(". ")[0].rstrip(".:")
        lines.append(f"- [{title.lstrip('# ')}]({path.stem}.html): {sentence}")
    (Path(config["site_dir"]) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

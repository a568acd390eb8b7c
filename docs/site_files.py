"""Links of the documentation: what they lead to, and pages of the site for files outside docs/.

A page may link to any file or folder of the repository (`../examples/ddp_toy/before.py`). A code host opens
that file. On the site the link opens a page under source/, which this hook of mkdocs makes from the file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from posixpath import relpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
# Lexers by the end of a file's name.
LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash"}
_CODE = re.compile(
    r"^(?P<fence>[ \t]*(`{3,}|~{3,}))[^\n]*\n.*?^[ \t]*\2[ \t]*$|(?P<ticks>`+)[^`].*?(?P=ticks)",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\(\s*<?(?P<target>[^)\s>]+)>?[^)]*\)")
_HEADING = re.compile(
    r"^#{1,6}[ \t]+(?P<text>.+?)(?:[ \t]+\{#(?P<id>[\w-]+)\})?[ \t]*#*$", re.MULTILINE
)


@dataclass(frozen=True)
class Link:
    """A link of a page to a file of the repository.

    Attributes:
        path: the file or folder; the page itself for a link to an anchor alone.
        anchor: the part after `#`, or nothing.
        start: where the target begins in the text.
        stop: where the target ends in the text.
        target: the target as the page has it.
    """

    path: Path
    anchor: str
    start: int
    stop: int
    target: str


def without_code(text: str) -> str:
    """Replace code blocks and inline code with spaces, so that positions stay."""
    return _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def links(page: Path, text: str) -> Iterator[Link]:
    """Yield the links of a page to files of the repository, not those to other sites."""
    for match in _LINK.finditer(without_code(text)):
        target = match["target"]
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        yield Link(file, anchor, match.start("target"), match.end("target"), target)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as the site makes them."""
    found: set[str] = set()
    fences = re.sub(
        r"^([ \t]*(`{3,}|~{3,})).*?^[ \t]*\2[ \t]*$", "", text, flags=re.MULTILINE | re.DOTALL
    )
    for match in _HEADING.finditer(fences):
        name = first = match["id"] or slug(match["text"])
        number = 0
        while name in found:
            number += 1
            name = f"{first}_{number}"
        found.add(name)
    # The heading that mkdocs-click writes for a command.
    found.update(map(slug, re.findall(r"^ {4}:prog_name: (.+)$", text, re.MULTILINE)))
    return found


def slug(heading: str) -> str:
    """Return the anchor of a heading."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def site_page(path: Path) -> str:
    """Return the page of the site for a file or folder, as a path from docs/."""
    if path.is_relative_to(DOCS):
        if path.is_dir() and (path / "README.md").exists():
            path /= "README.md"
        if path.suffix not in LANGUAGES and path.is_file():
            return path.relative_to(DOCS).as_posix()
    inside = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"source/{inside}/index.md"
    return f"source/{inside}" if path.suffix == ".md" else f"source/{inside}.md"


def has_text(path: Path) -> bool:
    """Whether a file can be a page: arrays and pictures cannot. A folder can."""
    if path.is_dir():
        return True
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def source_text(path: Path) -> str:
    """Return the Markdown of the page of a file or folder outside the pages of docs/."""
    inside = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        shown = sorted(file for file in path.iterdir() if not file.name.startswith(("_", ".")))
        lines = (
            f"- [{file.name}]({file.name})" if has_text(file) else f"- {file.name}"
            for file in shown
        )
        return "\n".join([f"# {inside}", "", *lines, ""])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return f"# {inside}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{text}\n{fence}\n"


def rewritten(page: Path, text: str) -> str:
    """Return the text of a page whose links lead to pages of the site."""
    parts, done = [], 0
    here = site_page(page)
    base = here.rpartition("/")[0] or "."
    for link in links(base_file(page), text):
        if not link.path.exists() or (link.path == page and link.anchor):
            continue
        anchor = f"#{link.anchor}" if link.anchor else ""
        parts += [text[done : link.start], relpath(site_page(link.path), base) + anchor]
        done = link.stop
    return "".join([*parts, text[done:]])


def base_file(page: Path) -> Path:
    """Return a file in the folder from which a page's links start: a folder's own page starts in it."""
    return page / "index.md" if page.is_dir() else page


# The file or folder of each page under source/, by its path from docs/.
_SOURCES: dict[str, Path] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside docs/ to which a page links, and for those that these link to."""
    from mkdocs.structure.files import File

    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    waiting.append(ROOT / "CONTRIBUTING.md")
    texts = {page: source_text(page) for page in waiting}
    while waiting:
        page = waiting.pop()
        name = site_page(page)
        if name.startswith("source/") and name not in _SOURCES:
            _SOURCES[name] = page
            files.append(File.generated(config, name, content=texts[page]))
        for link in links(base_file(page), texts[page]):
            known = (
                link.path in texts or not link.path.exists() or not link.path.is_relative_to(ROOT)
            )
            if not known and site_page(link.path).startswith("source/"):
                texts[link.path] = source_text(link.path)
                waiting.append(link.path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page's Markdown with its links turned to pages of the site."""
    name = page.file.src_uri
    return rewritten(_SOURCES.get(name, DOCS / name), markdown)

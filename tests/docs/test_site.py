"""The documentation: its navigation, its links, and the messages that its FAQ explains."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Pages that the index of their folder links; docs/rule_pages.py and docs/gallery.py make them.
GENERATED = ("rules", "hazards", "parity/causes", "gallery")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look
    spec.loader.exec_module(module)
    return module


site = load("site_files")


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def named(entry: object) -> Iterator[str]:
    """Yield the pages of an entry of the navigation."""
    match entry:
        case str():
            yield entry
        case list():
            for one in entry:
                yield from named(one)
        case dict():
            for one in entry.values():
                yield from named(one)


def navigation() -> list[str]:
    return list(named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))


def test_the_navigation_names_pages_that_exist_once() -> None:
    names = navigation()
    assert len(set(names)) == len(names)
    sources = [name.removeprefix("source/") for name in names if name.startswith("source/")]
    assert [name for name in sources if not (ROOT / name).is_file()] == []
    written = [name for name in names if not name.startswith("source/")]
    assert [name for name in written if not (DOCS / name).is_file()] == []


def test_every_page_is_in_the_navigation_or_generated() -> None:
    names = set(navigation())
    missing = [
        name
        for page in pages()
        if (name := page.relative_to(DOCS).as_posix()) not in names
        and not name.startswith(tuple(f"{folder}/" for folder in GENERATED))
    ]
    assert missing == []


@pytest.mark.parametrize(
    "page", [*pages(), ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    def leads(link: Any) -> bool:
        return link.path.exists() and (
            not link.anchor or link.anchor in site.anchors(link.path.read_text())
        )

    broken = [link.target for link in site.links(page, page.read_text()) if not leads(link)]
    assert broken == []


def test_links_in_code_are_none() -> None:
    text = "a [b](c.md#d) `[x](y)`\n\n```\n[e](f)\n```\n[g](https://h) [i](<../j.py>)\n[k](#l)\n"
    found = list(site.links(DOCS / "page.md", text))
    assert [(link.path, link.anchor) for link in found] == [
        (DOCS / "c.md", "d"),
        (ROOT / "j.py", ""),
        (DOCS / "page.md", "l"),
    ]
    assert [text[link.start : link.stop] for link in found] == ["c.md#d", "../j.py", "#l"]


def test_anchors_are_those_of_the_site() -> None:
    text = "# A `b` – c: *d*!\n## Same\n## Same\n```\n# code\n```\n### [Link](x.md) 1.2\n"
    assert site.anchors(text) == {"a-b-c-d", "same", "same_1", "link-12"}
    assert site.anchors("::: mkdocs-click\n    :prog_name: migrate run\n") == {"migrate-run"}


def test_files_of_the_repository_get_a_page() -> None:
    page = DOCS / "guides" / "project.md"
    text = "[a](../../examples/mlp/run.py) [b](../../examples/mlp) [c](../port.md#d) [e](#f)"
    assert site.rewritten(page, text) == (
        "[a](../source/examples/mlp/run.py.md) [b](../source/examples/mlp/index.md) "
        "[c](../port.md#d) [e](#f)"
    )
    folder = site.source_text(ROOT / "examples" / "mlp")
    assert "[run.py](run.py)" in folder
    assert "[a](run.py.md)" in site.rewritten(ROOT / "examples" / "mlp", "[a](run.py)")
    assert "```python\n" in site.source_text(ROOT / "examples" / "mlp" / "run.py")


def strings() -> str:
    """Return all literal text of the code, on one line each."""
    found = []
    for package in ("migrate", "converters", "shims"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(" ".join(node.value.split()))
    return "\n".join(found)


def test_the_messages_of_the_faq_are_those_of_the_code() -> None:
    """Each heading that quotes a message, without what differs from case to case (…)."""
    code = strings()
    quoted = re.findall(r"^### `([^`]+)`$", (DOCS / "faq.md").read_text(), re.MULTILINE)
    assert len(quoted) > 20
    parts = [part.strip(" :;,") for message in quoted for part in message.split("…")]
    assert [part for part in parts if part and part not in code] == []


def test_the_tutorial_shows_its_files() -> None:
    text = (DOCS / "start.md").read_text()
    folder = ROOT / "examples" / "first_steps"
    assert f"```python\n{(folder / 'train.py').read_text()}```" in text
    added = re.findall(
        r"^\+(?!\+\+)(.+)$", (text.split("```diff\n")[1]).split("```")[0], re.MULTILINE
    )
    rewritten = (folder / "train_xla.py").read_text().splitlines()
    assert added
    assert [line for line in added if line not in rewritten] == []


def test_the_rewrite_of_the_tutorial_is_what_the_tool_writes() -> None:
    from migrate.rewrite.pipeline import rewrite

    folder = ROOT / "examples" / "first_steps"
    done = rewrite(folder / "train.py")
    assert done.data.decode() == (folder / "train_xla.py").read_text()
    assert not done.findings
    text = (DOCS / "start.md").read_text()
    for edit in done.edits:
        assert edit.message in text


@pytest.mark.long
def test_the_site_builds(tmp_path: Path) -> None:
    """In the environment of `make docs-site`; skipped where it is not there."""
    python = ROOT / ".venv-docs" / "bin" / "python"
    if not (ROOT / ".venv-docs" / ".installed").exists():
        pytest.skip("make docs-site makes the environment")
    command = [python, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    loaded = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="?https?://')
    assert [page for page in tmp_path.rglob("*.html") if loaded.search(page.read_text())] == []

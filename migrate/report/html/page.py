"""Write a page from its template."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters.atomic import atomic_write
from converters.installing import is_installed, missing_error
from migrate.errors import MigrateError
from migrate.report.html.banner import Banner, sentence
from migrate.versions import versions

if TYPE_CHECKING:
    from markupsafe import Markup


class PageError(MigrateError):
    """The page cannot be written.

    Cause: its folder does not exist, or the packages that draw it are not installed.

    Remedy: make the folder, or `pip install '.[report]'` in a clone.
    """


def check_page_target(path: Path) -> None:
    """Raise the errors of `write_page` that can be known before a run.

    Raises:
        PageError: the folder or a package is missing.
    """
    if not path.parent.is_dir() or path.is_dir():
        raise PageError(
            f"{path}: not a file in an existing folder", "name another file with --html"
        )
    for package in ("jinja2", "matplotlib"):
        if not is_installed(package):
            raise missing_error(package, needed_by="--html")


def write_page(template: str, path: Path, banner: Banner, **values: Any) -> None:
    """Render `template` with `values` and write it to `path`, replacing the file if it exists.

    Args:
        template: its file name in `templates/`.
        path: the file to write.
        banner: the verdict at the top of the page.
        values: what the template shows; "title" among them.

    Raises:
        PageError: the folder or a package is missing.
        OutputError: the disk refuses.
    """
    check_page_target(path)
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("migrate.report.html", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _with_code
    environment.filters["sentence"] = sentence
    page = environment.get_template(template).render(versions=versions(), banner=banner, **values)
    with atomic_write(path, overwrite=True) as file:
        file.write(page.encode())


# Text in backticks, and options of a command ("--steps").
_CODE = re.compile(r"`([^`]+)`|(?<![\w-])(--[a-z][a-z-]*)")


def _with_code(text: str) -> Markup:
    """Return `text` as HTML: text in backticks and options as code."""
    from markupsafe import Markup, escape

    def code(match: re.Match[str]) -> str:
        if match[1]:
            return f"<code>{match[1]}</code>"
        return f'<code class="option">{match[2]}</code>'

    return Markup(_CODE.sub(code, str(escape(text))))

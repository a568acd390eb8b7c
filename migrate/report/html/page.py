"""Write a page from its template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from converters.atomic import atomic_write
from converters.installing import is_installed, missing_error
from migrate.errors import MigrateError
from migrate.versions import versions


class PageError(MigrateError):
    """The page cannot be written.

    Cause: its folder does not exist, or the packages that draw it are not installed.

    Remedy: make the folder, or `pip install '.[report]'` in a clone.
    """


def check_page_target(path: Path) -> None:
    """Raise what `write_page` would, as far as it can be known before a run.

    Raises:
        PageError: see there.
    """
    if not path.parent.is_dir() or path.is_dir():
        raise PageError(
            f"{path}: not a file in an existing folder", "name another file with --html"
        )
    for package in ("jinja2", "matplotlib"):
        if not is_installed(package):
            raise missing_error(package, needed_by="--html")


def write_page(template: str, path: Path, **values: Any) -> None:
    """Write the page that `template` makes of `values` to `path`; what is there is replaced.

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
    page = environment.get_template(template).render(versions=versions(), **values)
    with atomic_write(path, overwrite=True) as file:
        file.write(page.encode())

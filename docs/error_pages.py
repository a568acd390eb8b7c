"""The page of errors: what each means and what to do, from the docstrings of the error classes."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """\
# Errors

Made from the error classes by `make docs`. A command that cannot do its work prints one line and ends with
exit code 2:

```text
migrate: train.py:12:8: no Python 3: …; …
```

The part before the last semicolon says what happened and where, the part behind it what to do. `--debug` adds
the traceback, whose last line names the class. Frequent messages are explained in the [FAQ](../faq.md).
"""
# The heading of each folder's errors; the first that matches.
HEADINGS = {
    "migrate/syntax/": "Reading a script or notebook",
    "migrate/rewrite/": "`migrate rewrite`",
    "migrate/check/": "`migrate check`",
    "migrate/report/": "`migrate check`",
    "migrate/prove/": "`migrate run` and `migrate prove`",
    "migrate/parity/": "`migrate parity`",
    "migrate/port/": "`migrate port`",
    "migrate/fit/": "`migrate fit`",
    "migrate/assess/": "`migrate assess`",
    "migrate/launch/": "`migrate launch`",
    "converters/": "`migrate weights` and `converters`",
    "shims/": "`shims` and simulated replicas",
}


def page() -> str:
    """Return the Markdown page of all errors that say what to do."""
    sections: dict[str, dict[str, str]] = {heading: {} for heading in HEADINGS.values()}
    for folder, heading in HEADINGS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            sections[heading].update(_errors(path))
    parts = [HEAD.rstrip()]
    for heading, errors in sections.items():
        parts.append(f"## {heading}")
        parts += [f"### {name}\n\n{text}" for name, text in sorted(errors.items())]
    return "\n\n".join(parts) + "\n"


def _errors(path: Path) -> dict[str, str]:
    """Return the docstrings of a file's errors that name a remedy, by class name."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    documented = {one.name: ast.get_docstring(one) or "" for one in classes}
    return {
        name: _markdown(text)
        for name, text in documented.items()
        if name.endswith("Error") and "Remedy:" in text
    }


def _markdown(text: str) -> str:
    """Return a docstring without its section of arguments, its key words in bold."""
    text = inspect.cleandoc(text).partition("\nArgs:")[0].rstrip()
    text = re.sub(
        r"\b(Cause|Remedy): (\w)", lambda match: f"**{match[1]}.** {match[2].upper()}", text
    )
    return text.replace("\n**Remedy", "\n\n**Remedy").replace("\n\n\n", "\n\n")

"""Changes of a template's text."""

from __future__ import annotations

from collections.abc import Mapping


def substitute(template: str, changes: Mapping[str, str]) -> str:
    """Return the template with each old text replaced, in order.

    Args:
        template: the text.
        changes: old text → new text.

    Raises:
        ValueError: the template does not contain an old text, so that the change would be lost.
    """
    for old, new in changes.items():
        if old not in template:
            raise ValueError(f"the template does not contain {old!r}")
        template = template.replace(old, new)
    return template

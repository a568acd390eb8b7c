"""The page of names: what XLA makes of each, what to write, who speaks of it, what shims answer."""

from __future__ import annotations

from migrate.catalogue import catalogue
from migrate.catalogue.entry import CatalogueEntry
from migrate.check.rules import all_hazards
from migrate.rewrite.rules import all_rules
from shims.patches import assemble, cuda, rng
from shims.patches.devices import Devices, HostPlacement

HEAD = """# What XLA makes of each name

Made from `migrate/catalogue` and from the answers of `shims` by `make docs`; the names of torch.cuda
are called by a test. A name stands for all that lies below it, unless it works. Native is torch_xla, portable
is shims (where it says nothing else, the same); `migrate check` and `migrate rewrite` speak of the name by
that code and that rule. Under `python -m shims` unedited scripts get what the last column says
(more in [answers](shims/answers.md)).
"""
COLUMNS = ("name", "on XLA", "native", "portable", "check", "rewrite", "under shims")


def page() -> str:
    """Return the Markdown page of all names."""
    shims = _answers()
    rows = [_row(entry, shims) for _, entry in sorted(catalogue.IMPORTS.items())]
    table = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *rows]
    return HEAD + "\n" + "\n".join(table) + "\n"


def _row(entry: CatalogueEntry, shims: dict[str, str]) -> str:
    cells = (
        f"`{entry.name}`",
        entry.does or entry.on_xla.value,
        entry.native,
        entry.portable,
        _checked_by(entry.code),
        f"[{entry.rule}](rules/{entry.rule}.md)" if entry.rule else "",
        shims.get(entry.name, ""),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _checked_by(code: str) -> str:
    """Return a code, linked to the page of its hazard, else of its rule."""
    if not code or code in {hazard.code for hazard in all_hazards()}:
        return f"[{code}](hazards/{code}.md)" if code else ""
    rule = next(rule for rule in all_rules() if code in rule.codes)
    return f"[{code}](rules/{rule.name}.md)"


def _answers() -> dict[str, str]:
    """Return what shims answer where work runs on the CPU, by name, also that they refuse."""
    devices = Devices(2, HostPlacement())
    answered = list(assemble.all_patches(devices, rng.HostGenerators(devices), lambda: None))
    own = {one.attribute for one in answered if one.name.startswith("torch.cuda.")}
    return {one.name: one.answers for one in (*answered, *cuda.refusals(own))}

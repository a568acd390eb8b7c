"""The page of the planted faults: `python -m tests.parity.pairs.page` writes it."""

from __future__ import annotations

from pathlib import Path

from tests.parity.pairs.catalogue import FAULTS, PAIRS

PAGE = Path(__file__).parents[3] / "docs/parity/faults.md"
HEAD = """# Planted faults

What `migrate parity` is held to. {pairs} pairs of a torch model and its port (`tests/parity/pairs`)
match with five seeds, in float32 and in bfloat16. In {faults} of such ports one mistake each is planted,
as people make it. `tests/parity/test_faults.py` demands of each that it is found, in the layer that has
it, and, where a cause stands in the table, that it is the first that is named. "the model" is what the
outermost module computes itself, between the layers inside it; what a port has not as a module of its
own shows in what its neighbour is given.

| pair | mistake | what it imitates | layer | cause |
|---|---|---|---|---|
"""


def page() -> str:
    """The Markdown."""
    rows = []
    for pair, fault in FAULTS.values():
        layer = f"`{fault.layer}`" if fault.layer else "the model"
        cause = f"[{fault.cause}](causes/{fault.cause}.md)" if fault.cause else ""
        rows.append(f"| {pair.name} | {fault.name} | {fault.imitates} | {layer} | {cause} |\n")
    return HEAD.format(pairs=len(PAIRS), faults=len(FAULTS)) + "".join(rows)


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())

"""The page of the planted faults: `python -m tests.parity.pairs.page` writes it."""

from __future__ import annotations

from pathlib import Path

from tests.parity.pairs.catalogue import FAULTS, PAIRS

PAGE = Path(__file__).parents[3] / "docs/parity/faults.md"
HEAD = """# Planted faults

Check that `migrate parity` finds known mistakes:

```bash
python -m pytest tests/parity/test_faults.py
```

{pairs} pairs of a torch model and its port (`tests/parity/pairs`) match with five seeds, in float32 and in
bfloat16. Each of {faults} faults is one typical mistake, planted in such a port. The test requires that the
fault is found in the layer that has it. If the table names a cause, that cause must be the first in the
report.

"The model" means the code of the outermost module between its inner layers. If a port has no module for the
faulty operation, the fault shows in the input of the next layer.

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

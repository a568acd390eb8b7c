"""The page of the operators that `migrate port` writes in JAX, and of those that it refuses with a reason."""

from __future__ import annotations

from collections.abc import Iterable

from converters.graph.ops import CannotLowerError, Lowering, lowerings

HEAD = """\
# Operators

The operators of torch that [`migrate port`](../port.md) writes in JAX. Made from the lowerings by
`make docs`. Each lowering has samples: a test runs torch's operator and what the lowering writes, and
compares values and gradients.

A model with other operators is not ported. All that are missing are listed at once, each with the line that
needs it. Register a lowering of your own with `--lowerings my_ops.py`:

```python
from converters.graph.expression import code
from converters.graph.ops.registry import op, real, sample


@op("my_lib.reversed_sub.default", samples=(sample(real(2, 3), 2.5),))
def reversed_sub(x, other):
    return code("{other} - {x}", x=x, other=other)
```
"""


def page() -> str:
    """Return the Markdown page of all operators."""
    written: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    for name, lowering in lowerings().items():
        if lowering.samples:
            written.setdefault(_family(lowering), []).append(name)
        else:
            refused.setdefault(_reason(lowering), []).append(name)
    count = sum(map(len, written.values()))
    parts = [HEAD.rstrip(), f"## Written in JAX\n\n{count} operators, with their overloads."]
    parts += [f"### {family}\n\n{_listed(names)}" for family, names in sorted(written.items())]
    parts.append("## Refused")
    parts += [
        f"{reason[:1].upper()}{reason[1:]}:\n{_listed(names)}" for reason, names in refused.items()
    ]
    return "\n\n".join(parts) + "\n"


def _family(lowering: Lowering) -> str:
    """Return the name of the file that has a lowering, as a heading."""
    return lowering.write.__module__.rpartition(".")[2].replace("_", " ").capitalize()


def _reason(lowering: Lowering) -> str:
    """Return why an operator is refused."""
    try:
        lowering.write()
    except CannotLowerError as error:
        return str(error)
    raise AssertionError(f"{lowering.names} has no sample and is not refused")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))

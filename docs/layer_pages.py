"""The page of the layers that `migrate weights` knows, from their entries: docstrings, names, layouts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from converters.layers import FlaxCall, LayerEntry, entries, flax_calls, reparametrized
from converters.layers.entry import Weight
from converters.layers.flax_call import Api
from converters.layers.join import ALONE
from converters.layers.reparametrized_cases import COMPUTED, EXACT
from converters.mapping import flattened_convolutions, paths

APIS: tuple[Api, ...] = ("linen", "nnx")
HEAD = """\
# Layers

Look up how `migrate weights` converts a layer of torch.nn: the names of its weights in Flax, their layout,
and how to write the layer in linen and nnx. This page is made from the entries of the layers
by `make docs`. Every entry is proven by a forward comparison: torch, linen and nnx give the same output
(1e-6 in float32 at the highest precision) from the same weights. The weights come back bit for bit.

If Flax lacks a layer, or has it in another form, the layer is in `converters.modules.linen` and in
`converters.modules.nnx`. It has torch's name and arguments, and takes exactly the weights that are written.

Layers without parameters and buffers need no entry. A loss with class weights keeps them as a buffer.
Refused by name: lazy layers that were never run, quantized layers, and the layers of `torch.ao`.

Layouts read from left to right, as in a mapping file: `transpose(1, 0)` are numpy's axes, `split(1, 3, 4)`
makes axes of 3 and 4 of axis 1, `merge(0, 3, 4)` undoes that, `flip(0)` reverses, `slice(0, 4, 8)` is a
part of the torch tensor. Sizes are those of the first case.

The code blocks show some of the modules that were compared (`converters.layers.flax_calls` gives this code
for any layer). `nn` is `flax.linen`, `modules` is `converters.modules.linen` or `converters.modules.nnx`.
`rngs` is an `nnx.Rngs`, and `deterministic` is False in training. "Channels last" means: axis 1 in torch is
the last axis of input and output."""


def page() -> str:
    """Return the Markdown page."""
    families: dict[str, list[LayerEntry]] = {}
    for entry in sorted(entries().values(), key=lambda entry: entry.kind):
        families.setdefault(entry.doc, []).append(entry)
    parts = [HEAD]
    for doc, family in families.items():
        parts.append(f"## {', '.join(entry.kind for entry in family)}")
        parts.append(inspect.cleandoc(doc))
        shown = next((one for one in family if one.kind.endswith("2d")), family[0])
        parts += _table(shown)
        parts.append(_written(shown))
        cases = dict.fromkeys(case.name for entry in family for case in entry.cases)
        parts.append(f"Compared: {_listed(cases)}.")
    parts += ["## Weights that a layer computes", _doc(reparametrized)]
    names = dict.fromkeys(case.name for case in (*EXACT, *COMPUTED))
    parts.append(f"Compared: {_listed(names)}.")
    parts += ["## A flattened convolution", _doc(flattened_convolutions), "## Paths", _doc(paths)]
    return "\n\n".join(parts) + "\n"


def _doc(module: object) -> str:
    return inspect.cleandoc(module.__doc__ or "")


def _listed(names: Iterable[str]) -> str:
    return "; ".join(name.replace("|", "/") for name in names)


def _table(entry: LayerEntry) -> list[str]:
    """Return the names of an entry's first case that has all its weights."""
    import torch

    layer = entry.cases[0].torch(torch.nn)
    held = layer.state_dict()
    weights = [weight for weight in entry.weights_of(layer) if weight.torch in held]
    rows = [_row(weight) for weight in weights]
    rows += [
        f"| `{name}` | dropped: {reason} | |" for name, reason in entry.dropped if name in held
    ]
    if not rows:
        return []
    head = [f"| {entry.kind} | Flax | layout |", "|---|---|---|"]
    return ["\n".join([*head, *rows])]


def _written(entry: LayerEntry) -> str:
    """Return how the layers of an entry's cases are written: of each class the first and the longest."""
    import torch

    lines: dict[str, list[str]] = {}
    for case in entry.cases:
        layer = case.torch(torch.nn)
        for api in APIS:
            for call in flax_calls(layer, api):
                lines.setdefault(call.of, []).append(_line(call, api))
    shown = [line for of in lines.values() for line in dict.fromkeys((of[0], max(of, key=len)))]
    return "\n".join(["```python", *shown, "```"])


def _line(call: FlaxCall, api: str) -> str:
    applied = call.applied("layer", "x")
    remarks = [applied] if applied != "layer(x)" else []
    remarks += ["channels last"] if call.channels_last else []
    where = f"{api}: {', '.join(remarks)}" if remarks else api
    return f"{call.source()}  # {where}"


def _row(weight: Weight) -> str:
    steps = [str(weight.part)] if weight.part else []
    steps += [str(weight.layout)] if str(weight.layout) != "unchanged" or not steps else []
    steps += [str(weight.join)] if weight.join != ALONE else []
    name = f"`{weight.linen}`"
    if weight.nnx != weight.linen:
        name += f", nnx `{weight.nnx}`"
    where = "" if weight.collection == "params" else f" in {weight.collection}"
    chain = ", ".join(f"`{step}`" for part in steps for step in part.split(" | "))
    return f"| `{weight.torch}` | {name}{where} | {chain} |"

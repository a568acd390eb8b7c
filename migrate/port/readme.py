"""The README of a port: what it is, what to know, and the proof."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from migrate.counts import many
from migrate.parity.ground.results import LayerVerdict
from migrate.parity.sides import frames
from migrate.port.results import Case, Initialisation

_FINE = (LayerVerdict.MATCH, LayerVerdict.UNDEFINED, LayerVerdict.ALONE)


def readme_text(
    name: str,
    target: str,
    port: Any,
    weights: str,
    cases: Sequence[Case],
    start: Initialisation | None,
    files: Iterable[str],
    command: str,
    versions: str,
) -> str:
    """The page.

    Args:
        name: of the package.
        target: what the user named.
        port: what the compiler gave.
        weights: where the values in params.safetensors come from; "" without such a file.
        cases: the proof; empty: there was none.
        start: how `init` draws; None: it was not compared.
        files: of the port.
        command: that makes it anew.
        versions: of the frameworks.
    """
    parts = [
        f"# {port.model_class}, in Flax\n",
        f"Ported from `{target}` by `{command}` ({versions}).",
        _origin(port.origin),
        "## Use\n",
        _use(name, port, bool(weights)),
        _weights(weights),
        _list(
            "## Free dimensions", port.free, "None: it takes the inputs that it was recorded with."
        ),
        _list("## What the recording fixed", port.baked, ""),
        _list("## To know", port.notes, ""),
        _missing(port.missing),
        "## Does it compute the same?\n",
        _proof(cases, bool(port.missing)),
        "## Does it start the same?\n",
        _start(port, start),
        "## Files\n",
        "\n".join(f"- `{file}`: {_FILES[file]}" for file in files if file in _FILES),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


_FILES = {
    "modeling.py": "the model; yours to edit",
    "config.py": "its sizes: another size of the same architecture is another instance",
    "params.safetensors": "its weights, by Flax path",
    "mapping.yaml": "which key of a torch checkpoint goes where; `convert.py` follows it",
    "convert.py": "another checkpoint of the architecture: `python convert.py CHECKPOINT OUTPUT.safetensors` "
    "(needs tpu-migrate)",
    "constants.safetensors": "arrays of the model that are no weights; `convert.py` adds them",
    "initial.safetensors": "arrays that the original computes when it is made; `init` reads them",
    "test_parity.py": "compares it with the original (needs torch and the original, not tpu-migrate)",
    "test_inputs.safetensors": "what that test feeds both with",
}


def _origin(origin: Sequence[tuple[str, str, int]]) -> str:
    rows = [f"| `{name}` | `{_file(file)}` | {line} |" for name, file, line in origin]
    return "\n".join(["| class | file | line |", "|---|---|---|", *rows]) if rows else ""


def _file(path: str) -> str:
    """A file as it is best named: from the package that it is installed with, else from here."""
    _, installed, below = path.rpartition("site-packages/")
    return below if installed else frames.shown(Path(path))


def _use(name: str, port: Any, weights: bool) -> str:
    shapes = ", ".join(
        f"`{one.name}` {one.dtype}[{', '.join(map(str, one.shape))}]" for one in port.inputs
    )
    given = ", ".join(f"{one.name}={one.name}" for one in port.inputs)
    loaded = (
        "variables = load_params()  # or of a file of convert.py"
        if weights
        else f"variables = model.init(jax.random.key(0), {given})"
    )
    lines = [
        "```python",
        "import jax",
        f"from {name} import {port.model_class}, {port.config_class}, load_params",
        "",
        f"model = {port.model_class}({port.config_class}())",
        loaded,
        f"outputs = jax.jit(model.apply)(variables, {given})",
        "```",
        "",
        f"Inputs: {shapes}; laid out as torch has them.",
    ]
    return "\n".join(lines)


def _weights(weights: str) -> str:
    return f"`params.safetensors`: {weights}." if weights else ""


def _list(title: str, lines: Sequence[str], none: str) -> str:
    if not lines:
        return f"{title}\n\n{none}" if none else ""
    return "\n".join([title, "", *(f"- {line}" for line in lines)])


def _missing(missing: Sequence[Any]) -> str:
    if not missing:
        return ""
    rows = [f"| `{one.op}` | {one.reason} | `{one.path}` | `{one.line}` |" for one in missing]
    head = ["## To be written\n", "Stubs stand in `modeling.py` for these operators.", ""]
    return "\n".join([*head, "| operator | why | module | source |", "|---|---|---|---|", *rows])


def _proof(cases: Sequence[Case], stubs: bool) -> str:
    if not cases:
        why = "stubs are to be filled in first" if stubs else "made with `--no-proof`"
        return f"**Not proven**: {why}. `migrate parity ORIGINAL port:THIS_FOLDER` compares them."
    rows = [
        "| compared | inputs | outputs, relative L2 to float64 | layers that match | verdict |",
        "|---|---|---|---|---|",
        *(_row(case) for case in cases),
    ]
    return "\n".join(rows)


def _start(port: Any, start: Initialisation | None) -> str:
    """How `init` draws, and what it draws otherwise than the original."""
    if not port.watched:
        return "Not known: nobody watched the original being made. `init` draws as Flax does."
    lines = []
    if start is None:
        lines.append("**Not compared** with new models of the original.")
    elif start.error:
        lines.append(f"**Could not be compared**: {start.error}")
    else:
        lines.append(
            f"`init` was compared with {many(start.builds, 'new model')} of the original: constants, mean, "
            "standard deviation, extreme values and the Kolmogorov–Smirnov distance of "
            f"{many(start.arrays, 'array')}."
        )
    lines += [
        f"- initialised otherwise than the original: `{key}`: {why}"
        for key, why in (port.otherwise if start is None else start.otherwise).items()
    ]
    if start is not None:
        lines += [f"- **differs**: `{path}`: {said}" for path, said in start.differs.items()]
        if not start.error and not start.differs and not start.otherwise:
            lines.append("All of them match.")
    return "\n\n".join([lines[0], "\n".join(lines[1:])])


def _row(case: Case) -> str:
    if case.skipped:
        return f"| {case.name} | | | | not tried: {case.skipped} |"
    if case.parity is None:
        return f"| {case.name} | {case.inputs} | | | **could not be compared**: {case.error} |"
    worst = worst_text(case)
    verdict = case.verdict if case.matches else f"**{case.sentence}**"
    return f"| {case.name} | {case.inputs} | {worst} | {layers_text(case)} | {verdict} |"


def worst_text(case: Case) -> str:
    """The relative L2 of the worst output, or of the worst gradient with its name."""
    if case.worst_gradient is not None:
        name, distance = case.worst_gradient
        return f"{distance:.1e} (gradient of {name})"
    return "" if case.worst is None else f"{case.worst:.1e}"


def layers_text(case: Case) -> str:
    """How many layers match, of those that both sides have: "74 of 74"; "" where none were compared."""
    if case.parity is None:
        return ""
    both = [one for one in case.parity.layers if one.verdict is not LayerVerdict.ALONE]
    fine = [one for one in both if one.verdict in _FINE]
    return f"{len(fine)} of {len(both)}" if both else ""

"""README of a port: description, notes and proof."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from migrate.counts import many
from migrate.parity.ground.results import LayerVerdict
from migrate.parity.sides import frames
from migrate.port.dtypes import narrow_name
from migrate.port.generation.results import CachedCase
from migrate.port.mesh.derive import Partition
from migrate.port.mesh.page import mesh_section
from migrate.port.mesh.results import MeshRun
from migrate.port.numerics.results import Numerics
from migrate.port.results import Initialization, ProofCase
from migrate.port.sizes.results import Sizes
from migrate.port.texts import TEST_INPUTS
from migrate.port.training_step import training_step

# From here on a distance in float32 needs an explanation.
_FAR = 1e-4
_FINE = (LayerVerdict.MATCH, LayerVerdict.UNDEFINED, LayerVerdict.ALONE)


def readme_text(
    name: str,
    target: str,
    port: Any,
    weights: str,
    cases: Sequence[ProofCase],
    start: Initialization | None,
    files: Iterable[str],
    command: str,
    versions: str,
    sizes: Sizes | None = None,
    numerics: Sequence[Numerics] = (),
    cached: CachedCase | None = None,
    partition: Partition | None = None,
    meshes: Sequence[MeshRun] = (),
    *,
    frozen: bool = False,
) -> str:
    """The page.

    Args:
        name: name of the package.
        target: what the user named.
        port: what the compiler gave.
        weights: origin of the values in params.safetensors; "" without such a file.
        cases: the proof; empty: there was none.
        start: how `init` draws; None: it was not compared.
        files: files of the port.
        command: command that makes the port again.
        versions: versions of the frameworks.
        sizes: what was proven at another size; None: nothing was tried.
        numerics: the proof in bfloat16.
        cached: the proof of the cached forward; None: there was none.
        partition: the partition rules; None: the port has none.
        meshes: the proof on meshes.
        frozen: whether the original trains only some of its weights.
    """
    files = tuple(files)
    parts = [
        f"# {port.model_class}, in Flax\n",
        f"Ported from `{target}` by `{command}` ({versions}).",
        _origin(port.origin),
        "## Use\n",
        _use(name, port, bool(weights), TEST_INPUTS in files, {} if sizes is None else sizes.tied),
        _generation(name, port),
        _weights(weights),
        _list(
            "## Free axes",
            [
                *port.free,
                *(() if sizes is None else sizes.free),
                *(bound.text for bound in port.bounds),
                *_free_of_methods(port),
            ],
            "None: it takes the inputs that it was recorded with.",
        ),
        _masks(port),
        _sizes(sizes),
        _list("## Numbers that stay as they were recorded", port.baked, ""),
        _training(name, port, frozen, bool(weights)),
        mesh_section(name, partition, meshes),
        _list("## To know", port.notes, ""),
        _missing(port.missing),
        "## Does it compute the same?\n",
        _proof(cases, bool(port.missing)),
        _numerics(numerics),
        _cached(cached),
        "## Does it start the same?\n",
        _start(port, start),
        "## Files\n",
        "\n".join(f"- `{file}`: {said}" for file in files if (said := _file_text(file))),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


_FILES = {
    "modeling.py": "the model; yours to edit",
    "layers.py": "weights of the layers: stacked, as the model has them, and apart, as files have them",
    "config.py": "the sizes of the model: an instance for each size",
    "sharding.py": "partition rules for a device mesh; yours to edit",
    "params.safetensors": "the weights, by Flax path",
    "params.torch.safetensors": "torch's names of the weights; only `migrate weights --to torch` reads it",
    "mapping.yaml": "the place of each key of a torch checkpoint; `convert.py` follows it",
    "convert.py": "converts another checkpoint of the architecture: "
    "`python convert.py CHECKPOINT OUTPUT.safetensors` (the only file that needs tpu-migrate)",
    "constants.safetensors": "arrays of the model that are no weights; `convert.py` adds them",
    "initial.safetensors": "arrays that the original computes when it is made; `init` reads them",
    "generate.py": "the cache, and generation of tokens with it",
    "test_parity.py": "compares it with the original (needs torch and the original, not tpu-migrate)",
    "test_inputs.safetensors": "the inputs of `test_parity.py`",
    "test_padding.safetensors": "the masks of padded batches of `test_parity.py`",
}


def _file_text(file: str) -> str:
    """Description of a file of the port."""
    method = re.fullmatch(r"test_inputs_(\w+)\.safetensors", file)
    return f"the inputs of `{method[1]}` in `test_parity.py`" if method else _FILES.get(file, "")


def _origin(origin: Sequence[tuple[str, str, int]]) -> str:
    rows = [f"| `{name}` | `{_file(file)}` | {line} |" for name, file, line in origin]
    return "\n".join(["| class | file | line |", "|---|---|---|", *rows]) if rows else ""


def _file(path: str) -> str:
    """A file as it is best named: from the package that it is installed with, else from here."""
    _, installed, below = path.rpartition("site-packages/")
    return below if installed else frames.shown(Path(path))


def _shape(input_: Any, tied: Mapping[tuple[str, int], str]) -> str:
    """Dtype and shape of an input, with the settings that its sides follow: `float32[batch, n_mels]`."""
    sides = [tied.get((input_.name, axis), str(side)) for axis, side in enumerate(input_.shape)]
    return f"{narrow_name(input_.dtype)}[{', '.join(sides)}]"


def _examples(name: str, port: Any) -> list[str]:
    """Lines that read the inputs of the test, under the names of the call's arguments."""
    names = [input_.name for input_ in port.inputs if not input_.optional]
    if not names:
        return []
    listed = ", ".join(f'"{argument}"' for argument in names)
    read = f'inputs["{names[0]}"]' if len(names) == 1 else f"(inputs[key] for key in ({listed}))"
    return [
        f'inputs = load_file("{name}/{TEST_INPUTS}")  # an example; yours go here',
        f"{', '.join(names)} = {read}",
    ]


def _use(
    name: str, port: Any, weights: bool, examples: bool, tied: Mapping[tuple[str, int], str]
) -> str:
    shapes = ", ".join(
        f"`{input_.name}` {_shape(input_, tied)}{' (optional)' * input_.optional}"
        for input_ in port.inputs
    )
    call_arguments = _given(port)
    inputs = _examples(name, port) if examples else []
    load = ["from safetensors.flax import load_file"] if inputs else []
    keys = enumerate(port.streams)
    rngs = ", ".join(f'"{name}": jax.random.key({number})' for number, name in keys)
    drawn = f", rngs={{{rngs}}}" if rngs else ""
    loaded = (
        "variables = load_params()  # load_params(FILE) reads a file that convert.py has written"
        if weights
        else f"variables = model.init(jax.random.key(0), {call_arguments})"
    )
    if port.api == "nnx":
        return _in_nnx(name, port, call_arguments, shapes, load, inputs)
    lines = [
        "```python",
        "import jax",
        *load,
        f"from {name} import {port.model_class}, {port.config_class}, load_params",
        "",
        f"model = {port.model_class}({port.config_class}())",
        *inputs,
        loaded,
        f"outputs = jax.jit(model.apply)(variables, {call_arguments}{drawn})",
        "```",
        "",
        f"Inputs: {shapes}; laid out as torch has them.",
        *_methods(port),
        *(["", _DRAWS] if rngs else []),
    ]
    return "\n".join(lines)


def _generation(name: str, port: Any) -> str:
    """Describe the call that generates tokens."""
    if port.cache is None:
        return ""
    recorded = port.cache.recorded
    first = recorded.encoder[0] if recorded.encoder else recorded.tokens
    masks = recorded.encoder_mask if recorded.encoder else "attention_mask"
    passed = ", ".join(filter(None, ["model", "variables", first, masks]))
    return "\n".join(
        [
            "```python",
            f"from {name}.generate import generate",
            "",
            f"tokens = generate({passed}, max_new_tokens=50)",
            f"tokens = generate({passed}, temperature=0.8, top_p=0.9, key=jax.random.key(0))",
            "```",
        ]
    )


def _in_nnx(
    name: str,
    port: Any,
    call_arguments: str,
    shapes: str,
    load: Sequence[str],
    inputs: Sequence[str],
) -> str:
    """Describe the use of an nnx model."""
    lines = [
        "```python",
        "from flax import nnx",
        *load,
        f"from {name} import build",
        "",
        "model = build()  # with the weights, in evaluation mode",
        *inputs,
        "run = nnx.jit(lambda model, inputs: model(**inputs))",
        f"outputs = run(model, dict({call_arguments}))",
        "```",
        "",
        f"`{port.model_class}({port.config_class}(), rngs=nnx.Rngs(0))` is a new model, in training mode.",
        "",
        f"Inputs: {shapes}; laid out as torch has them.",
        *_methods(port),
        *(["", _DRAWS] if port.streams else []),
    ]
    return "\n".join(lines)


def _given(port: Any) -> str:
    """The arguments of a call: what may be left out is."""
    return _arguments([input_.name for input_ in port.inputs if not input_.optional])


def _arguments(names: Sequence[str]) -> str:
    return ", ".join(f"{name}={name}" for name in names)


def _masks(port: Any) -> str:
    """Describe the inputs that may be left out, and the original's inputs that the port does not take."""
    drawn = {drawn.name for drawn in port.drawn}
    optional = [input_ for input_ in port.inputs if input_.optional and input_.name not in drawn]
    lines = []
    for drawn_input in optional:
        of_tokens = len(drawn_input.shape) == 2 and drawn_input.dtype.startswith(("int", "bool"))
        known = _SAID.items() if of_tokens else ()
        said = next((text for end, text in known if drawn_input.name.endswith(end)), _USUAL)
        needs = f" It is refused without `{drawn_input.needs}`." if drawn_input.needs else ""
        lines.append(f"`{drawn_input.name}`: {said}{needs}")
    for name, why in port.left.items():
        there = any(input_.name == name for input_ in port.inputs)
        what = "has to be given" if there else "is not in this port"
        lines.append(f"`{name}` {what}, though the original can do without it and with it: {why}.")
    return _list("## Masks and other optional inputs", lines, "")


_SAID = {
    "attention_mask": "1 for a token, 0 for padding, which no other token sees; left out: nothing is "
    "padding. A query that sees no key gives what it gives in torch.",
    "position_ids": "the position of each token; left out: as the original counts them.",
}
_USUAL = "None in the original if it is left out, and here."


def _methods(port: Any) -> list[str]:
    """Describe the calls of the further methods."""
    if not port.methods:
        return []
    lines = ["", "Further methods:", "", "```python"]
    for method in port.methods:
        call_arguments = ", ".join(f"{input_.name}={input_.name}" for input_ in method.inputs)
        call = f'model.apply(variables, {call_arguments}, method="{method.name}")'
        lines.append(f"model.{method.name}({call_arguments})" if port.api == "nnx" else call)
    return [*lines, "```"]


def _free_of_methods(port: Any) -> list[str]:
    return [
        f"{method.name}: {text}"
        for method in port.methods
        for text in (*method.free, *(bound.text for bound in method.bounds))
    ]


_DRAWS = (
    "It draws random numbers in its forward, as the original does: other keys give other outputs. JAX's "
    "generator gives other numbers than torch's; in the comparison below both draw the same."
)


def _weights(weights: str) -> str:
    return f"`params.safetensors`: {weights}." if weights else ""


def _training(name: str, port: Any, frozen: bool, weights: bool) -> str:
    """Show how to train the port, or say why it refuses."""
    nnx = port.api == "nnx"
    if port.refused:
        raises = "`model.train()` makes its calls raise" if nnx else "`deterministic=False` raises"
        lines = [
            f"## Training\n\n{raises}: what the original does in training is not in this "
            f"port: {port.refused}."
        ]
        if weights and not nnx:
            step = training_step(name, port, frozen).rstrip()
            lines += ["", _IN_EVALUATION, "", "```python", step, "```"]
        return "\n".join(lines)
    if not weights:
        return ""
    lines = ["## Training", "", _STEP, "", "```python", training_step(name, port, frozen).rstrip()]
    lines += ["```"]
    for drawn in port.drawn:
        place = f"{PurePath(drawn.place[0]).name}:{drawn.place[1]}"
        lines += ["", _DRAWN.format(name=drawn.name, place=place)]
    return "\n".join(lines)


_STEP = 'Three steps of training, below the lines of "Use". Put in your data, loss and optimizer.'
_IN_EVALUATION = (
    "The weights can be trained in evaluation mode, as in torch after `model.eval()`: without dropout, and "
    'with all buffers and statistics as they are. Three steps, below the lines of "Use". Put in your data, '
    "loss and optimizer."
)
_DRAWN = (
    "The original draws `{name}` itself in training, by Python or numpy ({place}); the port is given it: "
    "draw it for each batch, as the original does. Training without it is refused."
)


def _list(title: str, lines: Sequence[str], none: str) -> str:
    if not lines:
        return f"{title}\n\n{none}" if none else ""
    return "\n".join([title, "", *(f"- {line}" for line in lines)])


def _sizes(sizes: Sizes | None) -> str:
    if sizes is None:
        return ""
    lines = ["## Sizes", "", *_proven_sizes(sizes)]
    if sizes.held:
        lines += ["", _HELD, ""]
        lines += ["| size | value | why |", "|---|---|---|"]
        lines += [f"| `{held.name}` | {held.value} | {_cell(held.why)} |" for held in sizes.held]
    if sizes.unread:
        lines += ["", _UNREAD, ""]
        for why in dict.fromkeys(why for *_, why in sizes.unread):
            said = [f"`{name}` ({value})" for name, value, reason in sizes.unread if reason == why]
            lines.append(f"- {why}: {', '.join(said)}")
    if sizes.axes:
        lines += ["", "Axes of inputs that have one size: the model refuses another one.", ""]
        lines += [f"- axis {axis} of {name}: {size}" for (name, axis), size in sizes.axes.items()]
    return "\n".join(lines)


_UNREAD = (
    "Settings of the original that `config.py` lacks. Where `modeling.py` has one of these numbers (a length "
    "of a table, the first value of a weight), it is the number of the recording."
)
_RATES = "Rates of training, proven by what both sides drop there: "
_STARTS = "Numbers of initial values, proven by what `init` draws: "
_LENGTHS = "Any number of entries: "
_HELD = (
    "Fixed: `config.py` refuses other values. To use one nevertheless, write it into "
    "`modeling.py` and take the size out of `HELD` in `config.py`."
)


def _proven_sizes(sizes: Sizes) -> list[str]:
    lines = _proven_at_once(sizes)
    for title, numbers in ((_RATES, sizes.rates), (_STARTS, sizes.starts)):
        said = ", ".join(f"`{name}` {here}, tried at {there}" for name, here, there in numbers)
        lines += ["", f"{title}{said}."] if said else []
    lengths = ", ".join(
        f"`{name}` {here}, tried at {' and '.join(map(str, others))}"
        for name, here, others in sizes.lengths
    )
    return [*lines, *(["", f"{_LENGTHS}{lengths}."] if lengths else [])]


def _proven_at_once(sizes: Sizes) -> list[str]:
    if sizes.error:
        return [f"**Not proven at another size**: {sizes.error}."]
    if not sizes.changed:
        return ["**Not proven at another size**: the port follows none that was tried."]
    rows = [f"| `{name}` | {here} | {there} |" for name, here, there in sizes.changed]
    return [
        "Proven at another size, all of these changed together: the outputs are "
        f"{sizes.distance or 0.0:.1e} from the original's (relative L2).",
        "",
        "| size | here | proven at |",
        "|---|---|---|",
        *rows,
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _missing(missing: Sequence[Any]) -> str:
    if not missing:
        return ""
    rows = [
        f"| `{operation.op}` | {operation.reason} | `{operation.path}` | `{operation.line}` |"
        for operation in missing
    ]
    head = ["## To be written\n", "Stubs stand in `modeling.py` for these operators.", ""]
    return "\n".join([*head, "| operator | why | module | source |", "|---|---|---|---|", *rows])


def _proof(cases: Sequence[ProofCase], stubs: bool) -> str:
    if not cases:
        why = "stubs are to be filled in first" if stubs else "made with `--no-proof`"
        return f"**Not proven**: {why}. `migrate parity ORIGINAL port:THIS_FOLDER` compares them."
    rows = [
        "| compared | inputs | outputs, relative L2 to float64 | layers that match | verdict |",
        "|---|---|---|---|---|",
        *(_row(case) for case in cases),
    ]
    said = dict.fromkeys(case.reference for case in cases if case.reference)
    return "\n".join([*rows, *(f"\n{note[:1].upper()}{note[1:]}." for note in said)])


def _numerics(numerics: Sequence[Numerics]) -> str:
    """The rows in bfloat16: errors of both sides, as each rounds."""
    if not numerics:
        return ""
    rows = [
        f"| {numeric.setting} | {error_text(numeric.port, numeric)} "
        f"| {error_text(numeric.original, numeric)} "
        f"| {numeric.verdict if numeric.matches else f'**{numeric.verdict}**'} |"
        for numeric in numerics
    ]
    head = "| weights and computation | port, relative L2 to float64 | original in bfloat16 | verdict |"
    details = [f"- {numeric.setting}: {said}" for numeric in numerics for said in numeric.details]
    return "\n".join([head, "|---|---|---|---|", *rows, *([""] if details else []), *details])


def _cached(cached: CachedCase | None) -> str:
    """The row of the cached forward."""
    if cached is None:
        return ""
    distance = "" if cached.error else f"{cached.distance:.1e}"
    verdict = cached.verdict if cached.matches else f"**{cached.verdict}**"
    rows = [
        "| compared | inputs | worst position, relative L2 to the original without a cache | verdict |",
        "|---|---|---|---|",
        f"| {cached.name} | {cached.inputs} | {distance} | {verdict} |",
    ]
    return "\n".join(rows)


def error_text(error: float, of: Numerics) -> str:
    """An error of a comparison in bfloat16, or "" if nothing was compared."""
    return "" if of.skipped or of.error else f"{error:.1e}"


def _start(port: Any, start: Initialization | None) -> str:
    """Describe how `init` draws, and how that differs from the original."""
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
        f"- initialized otherwise than the original: `{key}`: {why}"
        for key, why in (port.otherwise if start is None else start.otherwise).items()
    ]
    if start is not None:
        lines += [f"- **differs**: `{path}`: {said}" for path, said in start.differs.items()]
        lines += [
            f'- **differs at the second sizes of "Sizes"**: `{path}`: {said}'
            for path, said in (start.there or {}).items()
        ]
        if not start.error and not start.differs and not start.otherwise:
            if start.there is None:
                lines.append("All of them match, at the sizes of `config.py`.")
            elif not start.there:
                lines.append('All of them match, also at the second sizes of "Sizes".')
    text = "\n\n".join([lines[0], "\n".join(lines[1:])])
    return text.replace("`init`", "the constructor") if port.api == "nnx" else text


def _row(case: ProofCase) -> str:
    if case.skipped:
        return f"| {case.name} | | | | not tried: {case.skipped} |"
    if case.parity is None:
        return f"| {case.name} | {case.inputs} | | | **could not be compared**: {case.error} |"
    worst = worst_text(case)
    verdict = case.verdict if case.matches else f"**{case.sentence}**"
    return f"| {case.name} | {case.inputs} | {worst} | {layers_text(case)} | {verdict} |"


def worst_text(case: ProofCase) -> str:
    """The relative L2 of the worst output, or of the worst gradient with its name."""
    if case.worst_gradient is not None:
        name, distance = case.worst_gradient
        what = name if name.startswith("statistics ") else f"gradient of {name}"
        own = case.own_gradient
        # A reader of 1e-2 beside "match" asks why: torch's own float32 is as far off.
        also = f"; torch's own in float32: {own:.1e}" if own is not None and distance > _FAR else ""
        return f"{distance:.1e} ({what}{also})"
    return "" if case.worst is None else f"{case.worst:.1e}"


def layers_text(case: ProofCase) -> str:
    """Number of matching layers, among those of both sides: "74 of 74"; "" if none were compared."""
    if case.parity is None:
        return ""
    both = [layer for layer in case.parity.layers if layer.verdict is not LayerVerdict.ALONE]
    fine = [layer for layer in both if layer.verdict in _FINE]
    return f"{len(fine)} of {len(both)}" if both else ""

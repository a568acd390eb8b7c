"""`migrate port`: make a folder with source, weights and proof from what the user names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.copied import copied
from converters.graph.writing.boundaries import ATTEND
from converters.graph.writing.dispatched import KERNELS
from converters.graph.writing.model import Limits
from converters.graph.writing.repeated.repeats import Repeats
from converters.installing import how_to_install, is_installed
from converters.mapping.file import OpenSizes
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.requests import HostDrawn
from migrate.parity.inputs.set import InputSet, write_inputs
from migrate.port import initialization
from migrate.port.compiler import compiled, has_compiler
from migrate.port.dtypes import narrow_name
from migrate.port.errors import PortError
from migrate.port.folder import port_name, record, require_place, writing
from migrate.port.generation.original import ends_of
from migrate.port.generation.proof import compare_cached
from migrate.port.generation.results import CachedCase
from migrate.port.generation.text import Ends, generate_text
from migrate.port.layers import LAYERS, layers_text, require_stackable
from migrate.port.mesh.derive import compare_meshes, write_rules
from migrate.port.mesh.results import MeshRun
from migrate.port.mesh.source import NAMES, SHARDING, sharding_text
from migrate.port.methods import (
    asked_of_method,
    inputs_of_methods,
    specs_by_method,
    tensors_of,
)
from migrate.port.numerics.compare import compared, located
from migrate.port.numerics.results import Folder as NumericsFolder
from migrate.port.numerics.results import Numerics
from migrate.port.original import SEED, OriginalInputs, OriginalModel, given_inputs, load_original
from migrate.port.padded import padded_batches, write_padding
from migrate.port.proof import (
    Arrays,
    alike,
    asked,
    described,
    proven,
    same_sizes,
    supported,
)
from migrate.port.readme import readme_text
from migrate.port.results import Ported, ProofCase
from migrate.port.scripted import record_script
from migrate.port.sizes.prove import sizes_of
from migrate.port.sizes.results import Sizes, unproven
from migrate.port.texts import (
    TEST_PADDING,
    convert_text,
    inputs_file,
    package_text,
    test_text,
    with_tied_inputs,
)
from migrate.port.texts import OriginalTexts as Way
from migrate.port.unused import notes_on_methods, unused_paths
from migrate.port.weights import INITIAL, PARAMS, PortWeights, stirred, write_weights
from migrate.progress import Progress
from migrate.versions import installed

_LINE = 100
# Optional inputs that a note lists.
_SHOWN = 5


@dataclass(frozen=True)
class PortOptions:
    """Options of a port.

    Attributes:
        output: the folder into which the port's own goes.
        name: name of the port and its package. None: the name of the target.
        inputs: inputs, as for `migrate parity --inputs`. Empty: those that the model suggests.
        count: inputs to make for the proof.
        weights: a torch checkpoint; None: the folder's, or those that the factory makes.
        stages: a folder for what each stage of the compiler made.
        lowerings: a file that registers lowerings of the user's.
        allow_stubs: whether missing operators become stubs.
        force: how often `--force` was said.
        proof: whether the port is compared with the original.
        timeout: seconds for one request to a side of the comparison.
        api: API of Flax.
        script: a training script whose run gives the inputs, and the model where nobody names it.
        args: arguments of that script.
        methods: methods of the original to port beside its forward.
        comparisons: comparisons to make, from the names of `ProofCase` and "sizes", "bfloat16",
            "initialization", "cache", "mesh". None: all.
        cache: whether to port the model's cached forward, and to write `generate.py`.
        scan: whether repeated layers are scanned, with stacked weights.
        attention: default implementation of attention; None: the port has no choice of it.
        remat: what is kept of repeated layers for the backward pass: "nothing", "dots", "all".
        mesh: whether partition rules are written, and the port compared on meshes of devices.
    """

    output: Path
    name: str | None = None
    inputs: tuple[str, ...] = ()
    count: int = 8
    weights: Path | None = None
    stages: Path | None = None
    lowerings: Path | None = None
    allow_stubs: bool = False
    force: int = 0
    proof: bool = True
    timeout: float = 600.0
    api: str = "linen"
    script: Path | None = None
    methods: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    comparisons: frozenset[str] | None = None
    cache: bool = False
    scan: bool = False
    remat: str = "all"
    attention: str | None = None
    mesh: bool = False

    def compares(self, name: str) -> bool:
        """Whether a comparison is made."""
        return self.proof and (self.comparisons is None or name in self.comparisons)


def port_model(
    target: str | None, options: PortOptions, command: str, progress: Progress
) -> Ported:
    """Port a model, write its folder, and compare it with the original.

    Args:
        target: what the user named; None: the model of `options.script`.
        options: what is asked.
        command: command that makes the port again, for its README.
        progress: receives the progress.

    Raises:
        PortError: there is nothing to port, or no place to write to.
        MissingOperatorsError, EditedError: see there.
        ParityError, ConversionError: the model, its inputs or weights cannot be had, or the model cannot be
            recorded. Nothing is written.
    """
    if not has_compiler():
        raise PortError("this installation has no compiler", "install the whole of tpu-migrate")
    _require_readable(options)
    _require_combined(options)
    with tempfile.TemporaryDirectory(prefix="migrate-port-") as scratch:
        work = Path(scratch)
        proposed, specs, said = "", options.inputs, tuple[str, ...]()
        if options.script is not None:
            progress(f"running {options.script}")
            recorded = record_script(
                options.script,
                options.args,
                target,
                count=options.count,
                timeout=options.timeout,
                folder=work / "script",
                originals=options.output / "originals",
            )
            proposed = recorded.name if target is None else ""
            target, said = recorded.target, recorded.notes
            specs = (*specs, str(recorded.inputs))
        if target is None:
            raise PortError("no model is given", "name file.py:Class, or --from-script train.py")
        progress("building the model")
        original = load_original(target, options.weights, work)
        name = port_name(options.name, proposed or _proposed(original))
        folder = options.output / name
        lost = require_place(folder, options.force)
        progress("making inputs")
        own, of_methods = specs_by_method(specs, options.methods)
        original_inputs = given_inputs(original, own, options.count, work / "inputs")
        methods = inputs_of_methods(
            original, original_inputs, of_methods, options.count, work / "methods", options.api
        )
        progress("recording and translating the model")
        port_result = compiled(
            original_inputs.model,
            original_inputs.tensors(),
            target,
            allow_stubs=options.allow_stubs,
            lowerings=options.lowerings,
            stages=options.stages,
            starts=original.starts,
            arguments=original.arguments,
            methods={name: tensors_of(inputs[0]) for name, inputs in methods.items()},
            api=options.api,
            cache=options.cache,
            repeats=Repeats(options.scan, options.remat, _compared_attention(options)),
            constrain=options.mesh,
        )
        ends: Ends | None = None
        if port_result.cache is not None:
            encoder = bool(port_result.cache.recorded.encoder)
            ends, lacking = ends_of(original_inputs.model, encoder)
            port_result = replace(port_result, notes=(*port_result.notes, *lacking))
        takes = _takes(original, original_inputs)
        tied = same_sizes(port_result.inputs, original_inputs.inputs[0], takes)
        port_result = replace(port_result, free=(*port_result.free, *tied))
        batches, undefined = _padded(original_inputs, port_result, takes, original.target.shown)
        with writing(folder) as place:
            progress("writing source and weights")
            weights = _written(
                place,
                folder,
                name,
                original,
                original_inputs,
                port_result,
                work,
                methods,
                batches,
                options.mesh,
                ends,
            )
            partition = write_rules(place, port_result) if options.mesh else None
            first = {name: inputs[0] for name, inputs in methods.items()}
            sizes = None
            if not port_result.missing:
                progress("building both at another size")
                sizes = _sizes(
                    place, original, original_inputs, port_result, options, progress, first
                )
                port_result = port_result.limited(sizes.limits)
                _write_limited(place, port_result)
                _tie_inputs(place, port_result, sizes)
            of_them = notes_on_methods(place, first, port_result.api)
            if of_them:
                port_result = replace(port_result, notes=(*port_result.notes, *of_them))
            notes = [
                *said,
                *original_inputs.notes,
                *inputs_not_in_port(original_inputs, port_result),
            ]
            notes += [*weights.notes, *formatted(place)]
            cases: tuple[ProofCase, ...] = ()
            runs_on: tuple[MeshRun, ...] = ()
            numerics: tuple[Numerics, ...] = ()
            cached: CachedCase | None = None
            if options.proof and not port_result.missing:
                padded = tuple(batches.values())
                wanted = list(
                    asked(
                        original_inputs.inputs,
                        port_result.inputs,
                        takes,
                        port_result.trains,
                        padded,
                        undefined,
                    )
                )
                wanted = [comparison for comparison in wanted if options.compares(comparison.name)]
                state, params = weights.state, place / PARAMS if weights.state else None
                if state is not None and original.checkpoint is None:
                    state, params, note = _stirred(
                        name, original, original_inputs, port_result, work
                    )
                    notes += note
                if options.compares("bfloat16"):
                    progress("comparing: bfloat16")
                    port_result, numerics = _in_bfloat16(
                        place,
                        original_inputs,
                        port_result,
                        state,
                        params,
                        work,
                        options.timeout,
                        padded,
                    )
                cases = proven(
                    original.target,
                    place,
                    folder,
                    wanted,
                    state,
                    params,
                    SEED,
                    options.timeout,
                    progress,
                    drawn=_drawn(port_result, work),
                )
                runs = not any(case.error for case in cases)  # else it does not run here either
                if partition is not None and runs and options.compares("mesh"):
                    progress("comparing: meshes of 8 simulated devices")
                    runs_on = compare_meshes(
                        place,
                        params,
                        port_result,
                        partition,
                        [original_inputs.inputs[at] for at in range(original_inputs.inputs.count)],
                        work / "meshes",
                        options.timeout,
                    )
                for method in port_result.methods if runs else ():
                    inputs = methods[method.name]
                    cases += proven(
                        original.target,
                        place,
                        folder,
                        asked_of_method(
                            original_inputs.model, method, inputs, takes, port_result.trains
                        ),
                        state,
                        params,
                        SEED,
                        options.timeout,
                        progress,
                        method.name,
                    )
                if port_result.cache is not None and runs and options.compares("cache"):
                    progress("comparing: cached logits")
                    cached = compare_cached(
                        _with_state(original_inputs.model, state),
                        original_inputs.tensors(),
                        port_result,
                        place,
                        params,
                        work / "cached",
                        options.timeout,
                    )
                if any(case.error for case in cases):
                    numerics = ()  # what does not run is said once
            cases = tuple(replace(case, suspects=port_result.own_gradients) for case in cases)
            notes += dict.fromkeys(case.reference for case in cases if case.reference)
            start = None
            if (
                options.compares("initialization")
                and not port_result.missing
                and port_result.watched
            ):
                progress("comparing: initialization")
                start = initialization.compared(
                    original,
                    place,
                    name,
                    port_result,
                    original_inputs.inputs[0],
                    _example(original_inputs),
                    work,
                    None if sizes is None else sizes.there,
                )
            if options.attention in KERNELS:
                port_result = _with_kernel(place, port_result, options.attention)
            whose = original.weights if weights.state else ""
            names = sorted(path.name for path in place.iterdir() if path.is_file())
            page = readme_text(
                name,
                target,
                port_result,
                whose,
                cases,
                start,
                names,
                command,
                _versions(original),
                sizes=sizes,
                numerics=numerics,
                cached=cached,
                partition=partition,
                meshes=runs_on,
                frozen=bool(weights.frozen),
            )
            (place / "README.md").write_text(page)
            files = record(place, target)
        return Ported(
            folder,
            files,
            target,
            port_result,
            whose,
            cases,
            tuple(notes),
            lost,
            sizes=sizes,
            numerics=numerics,
            initialization=start,
            cached=cached,
            meshes=runs_on,
        )


def _require_combined(options: PortOptions) -> None:
    """Report options that do not go together, before anything is loaded."""
    chosen = {
        "--api nnx": options.api == "nnx",
        "--cache": options.cache,
        "--methods": bool(options.methods),
        "--from-script": options.script is not None,
        "--scan": options.scan,
        "--remat": options.remat != "all",
        "--attention": options.attention is not None,
        "--mesh": options.mesh,
    }
    for name, others in _APART.items():
        for other in others if chosen[name] else ():
            if chosen[other]:
                raise PortError(f"{name} and {other} do not go together", f"leave out {other}")
    if options.mesh and options.allow_stubs:
        raise PortError(
            "--mesh with --allow-stubs: rules follow from the whole model",
            "register the missing operators with --lowerings, or leave --mesh out",
        )


# Combinations that nobody has built or proven.
_APART = {
    "--api nnx": ("--cache", "--scan", "--remat", "--attention", "--mesh"),
    "--cache": ("--methods", "--from-script", "--scan", "--remat", "--attention", "--mesh"),
    "--mesh": ("--scan",),
}


def _compared_attention(options: PortOptions) -> str:
    """The default of the attention with which the port is compared: the CPU has no kernel."""
    return "auto" if options.attention in KERNELS else options.attention or ""


def _with_kernel(place: Path, port_result: Any, kernel: str) -> Any:
    """The port, with this default in the folder's config.py."""
    file = place / "config.py"
    text = re.sub(r"(?m)^( +attention: str = ).auto.$", rf'\g<1>"{kernel}"', file.read_text())
    file.write_text(text)
    note = (
        f"`attention={kernel!r}` is the default of config.py. What is said here was found with `'auto'` on a "
        "CPU, which is XLA's attention"
    )
    return replace(port_result, config=text, notes=(*port_result.notes, note))


def _require_readable(options: PortOptions) -> None:
    """Report unreadable files before anything is loaded."""
    if options.args and options.script is None:
        raise PortError(
            f"{options.args[0]}: arguments after -- belong to a script",
            "name the script: --from-script train.py",
        )
    paths = (
        ("--weights", options.weights),
        ("--lowerings", options.lowerings),
        ("--from-script", options.script),
    )
    for said, path in paths:
        if path is not None and not path.exists():
            raise PortError(f"{said} {path}: no such file", "check the path")


def _proposed(original: OriginalModel) -> str:
    """Name of the port if the user gives none."""
    if original.folder is not None:
        named = original.folder.resolve().name
        kind = getattr(getattr(original.module, "config", None), "model_type", "")
        # A folder that is called so says nothing, nor does the hash of a snapshot.
        plain = named in ("model", "checkpoint", "pytorch_model") or len(named) >= 32
        return kind if plain and kind else named
    return original.target.spec.rpartition(":")[2].rpartition(".")[2]


def inputs_not_in_port(original_inputs: OriginalInputs, port: Any) -> Iterator[str]:
    """Yield a line about tensors that the original's forward can take, and the port cannot."""
    from migrate.parity.sides.torch.call import parameters

    there = {*port.left, *(argument.name for argument in port.inputs)}
    names = [name for name, _ in parameters(original_inputs.model) if name not in there]
    if names:
        what, them = ("input", "it") if len(names) == 1 else ("inputs", "them")
        listed = ", ".join(names[:_SHOWN]) + f" and {len(names) - _SHOWN} more" * (
            len(names) > _SHOWN
        )
        yield (
            f"not in the port: the optional {what} {listed}; the port computes what the original computes "
            f"without {them}. To have {them}, name {them} in --inputs too"
        )


def _takes(original: OriginalModel, original_inputs: OriginalInputs) -> Callable[[Arrays], bool]:
    import torch

    from migrate.parity.sides.torch.call import call

    def takes(arrays: Arrays) -> bool:
        try:
            with torch.no_grad():
                call(
                    original_inputs.model,
                    original_inputs.model,
                    original_inputs.tensors(arrays),
                    original.target.shown,
                )
        except ParityError:
            return False
        return True

    return takes


def _padded(
    original_inputs: OriginalInputs, port_result: Any, takes: Callable[[Arrays], bool], shown: str
) -> tuple[dict[str, Arrays], dict[str, Arrays]]:
    """Padded batches that the original takes; apart, by their rows, those for which it gives NaN."""
    import torch

    from migrate.parity.sides.torch.call import call

    batches: dict[str, Arrays] = {}
    undefined: dict[str, Arrays] = {}
    for name, arrays in padded_batches(original_inputs.inputs[0], port_result.inputs).items():
        if not takes(arrays):
            continue
        with torch.no_grad():
            outputs = call(
                original_inputs.model, original_inputs.model, original_inputs.tensors(arrays), shown
            )
        rows = sorted({row for _, output in outputs for row in _undefined_rows(output)})
        if rows:
            label = "row" if len(rows) == 1 else "rows"
            undefined[f"{label} {', '.join(map(str, rows))} ({name})"] = arrays
        else:
            batches[name] = arrays
    return batches, undefined


def _undefined_rows(output: Any) -> list[int]:
    """The rows of a tensor that have NaN."""
    if not output.is_floating_point():
        return []
    nan = output.isnan().reshape(output.shape[0] if output.ndim else 1, -1).any(1)
    return [row for row, there in enumerate(nan.tolist()) if there]


def _written(
    place: Path,
    folder: Path,
    name: str,
    original: OriginalModel,
    original_inputs: OriginalInputs,
    port_result: Any,
    work: Path,
    methods: Mapping[str, InputSet],
    padded: Mapping[str, Arrays],
    mesh: bool,
    ends: Ends | None,
) -> PortWeights:
    """Write everything but the README into the place, which will be the folder."""
    sources = {"modeling.py": port_result.modeling, "config.py": port_result.config}
    what = f"{port_result.model_class} in Flax"
    shapes = {
        name: (array.shape, narrow_name(array.dtype.name))
        for name, array in original_inputs.inputs[0].items()
    }
    names = (port_result.model_class, port_result.config_class, what, shapes)
    example = _example(original_inputs)
    api = port_result.api
    sizes = OpenSizes(port_result.settings, port_result.layer_sizes)
    weights = write_weights(
        original.module, name, port_result.constants, example, place, work, api, sizes
    )
    scanned = bool(port_result.stacks)
    if scanned:
        if weights.frozen:
            raise PortError(
                f"--scan: the original trains only some of its weights (not {weights.frozen[0]})",
                "leave --scan out",
            )
        sources[LAYERS] = layers_text(port_result.stacks)
    if mesh:
        attends = ATTEND in port_result.modeling
        sources[SHARDING] = sharding_text(port_result.model_class, (), (), attends=attends)
    written_of: dict[str, Any] = {
        "frozen": weights.frozen,
        "api": api,
        "scanned": scanned,
        "more": NAMES if mesh else (),
        "collections": weights.collections,
        "constants": bool(port_result.constants),
    }
    sources["__init__.py"] = package_text(*names, **written_of)
    spec = original.target.spec
    if weights.state is not None:
        sources["convert.py"] = convert_text(
            port_result.model_class,
            port_result.config_class,
            spec,
            weights.by_mapping,
            bool(port_result.constants),
            api,
            sized=weights.by_mapping and weights.sized,
        )
    if port_result.initial:
        from safetensors.numpy import save_file

        save_file(dict(port_result.initial), place / INITIAL)
    way = Way(
        spec,
        folder,
        original.checkpoint,
        original.folder is None or original.checkpoint is not None,
    )
    params = weights.state is not None
    how = (
        port_result.model_class,
        way,
        SEED,
        params,
        port_result.streams,
        tuple(methods),
        tuple(padded),
        api,
    )
    sources["test_parity.py"] = test_text(*how)
    if ends is not None:
        sources["generate.py"] = generate_text(
            port_result.model_class, port_result.config_class, port_result.cache, ends
        )
    for file, text in sources.items():
        _require_python(file, text)
        (place / file).write_text(text)
    if scanned and not port_result.missing:
        require_stackable(place)
    if unused := unused_paths(place):
        text = package_text(*names, unused, **written_of)
        (place / "__init__.py").write_text(text)
    if padded:
        write_padding(place / TEST_PADDING, original_inputs.inputs[0], padded)
    first = {"": original_inputs.inputs[0]} | {name: inputs[0] for name, inputs in methods.items()}
    for method, arrays in first.items():
        written = write_inputs(work / f"test{method}", [arrays])
        (place / inputs_file(method)).write_bytes((written.folder / "000.safetensors").read_bytes())
    return weights


def _sizes(
    place: Path,
    original: OriginalModel,
    original_inputs: OriginalInputs,
    port_result: Any,
    options: PortOptions,
    progress: Progress,
    methods: Mapping[str, Arrays],
) -> Sizes:
    """Find the sizes that the port follows. Its source in the folder then has no limits."""
    if options.comparisons is not None and "sizes" not in options.comparisons:
        return unproven(port_result, "left out")
    texts = frozenset(bound.text for bound in port_result.bounds)
    limits = Limits(lifted=texts, lengths=frozenset(port_result.settings))
    _write_limited(place, port_result.limited(limits))
    module, shown = original.module, original.target.shown
    inputs, construction = original_inputs.inputs[0], original.construction
    return sizes_of(port_result, place, module, construction, inputs, shown, progress, methods)


def _write_limited(place: Path, port_result: Any) -> None:
    for file, text in (("modeling.py", port_result.modeling), ("config.py", port_result.config)):
        (place / file).write_text(text)


def _tie_inputs(place: Path, port_result: Any, sizes: Sizes) -> None:
    """Let the package make the inputs of `init` from its config, where their axes follow settings."""
    if sizes.tied and port_result.api != "nnx":
        file = place / "__init__.py"
        file.write_text(with_tied_inputs(file.read_text(), port_result.config_class, sizes.tied))


def _example(original_inputs: OriginalInputs) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of the inputs, if these are images."""
    first = original_inputs.inputs[0]
    images = all(array.dtype.kind == "f" for array in first.values())
    return tuple(array.shape for array in first.values()) if images else None


def _stirred(
    name: str,
    original: OriginalModel,
    original_inputs: OriginalInputs,
    port_result: Any,
    work: Path,
) -> tuple[Path | None, Path, list[str]]:
    """Weights for the comparison where nobody trained any, for torch and for the port, and what to say."""
    model, count = stirred(original.module, SEED)
    folder = work / "stirred"
    folder.mkdir()
    example = _example(original_inputs)
    weights = write_weights(
        model, name, port_result.constants, example, folder, folder, port_result.api
    )
    note = f"compared with noise on {count} constant tensors (zeros hide what they multiply)"
    return weights.state, folder / PARAMS, [note] if count else []


def _with_state(model: Any, state: Path | None) -> Any:
    """The model with the weights of the proof."""
    import torch

    if state is not None:
        model = copied(model)
        model.load_state_dict(torch.load(state))
    return model


def _in_bfloat16(
    place: Path,
    original_inputs: OriginalInputs,
    port_result: Any,
    state: Path | None,
    params: Path | None,
    work: Path,
    timeout: float,
    batches: Sequence[Arrays] = (),
) -> tuple[Any, tuple[Numerics, ...]]:
    """Compare the port with the original in bfloat16, with the weights of the proof.

    Where its error is too large, its source is written with layers that round once, and stays so if that
    mends it.

    Returns:
        The port as its source is now, and the comparison of that.
    """
    model = _with_state(original_inputs.model, state)
    plain = alike(supported(original_inputs.inputs, port_result.inputs))
    first = (*plain[:2], *batches)
    inputs = (*first, *plain[2:])
    tensors = [original_inputs.tensors(example) for example in inputs]

    def measured(port: Any, name: str) -> tuple[Numerics, ...]:
        files = work / name
        files.mkdir()
        at = NumericsFolder(place, params, tuple(port.constants))
        few = len(first)
        return compared(model, tensors, port, at, files, timeout, described(inputs[0]), few)

    numerics = measured(port_result, "bfloat16")
    if all(numeric.is_as_near for numeric in numerics) or any(
        numeric.error for numeric in numerics
    ):
        return port_result, numerics

    def placed() -> tuple[Numerics, ...]:
        at = NumericsFolder(place, params, tuple(port_result.constants))
        return located(numerics, model, tensors[0], port_result, at, work / "modules", timeout)

    exact = port_result.rounding_once()
    if exact is None:
        return port_result, placed()
    source = place / "modeling.py"
    before = source.read_text()
    source.write_text(exact.modeling)
    formatted(place)
    again = measured(exact, "rounding once")
    if not all(numeric.matches for numeric in again):
        source.write_text(before)
        return port_result, placed()
    times = max(numeric.port / numeric.original for numeric in numerics if numeric.original)
    note = (
        "biases are added before the product is rounded, as torch does in bfloat16 "
        f"(rounded_once, DenseRoundedOnce): else its error would be {times:.1f} times the original's"
    )
    return replace(exact, notes=(*exact.notes, note)), again


def _drawn(port_result: Any, work: Path) -> tuple[HostDrawn, ...]:
    """Return the values that the original drew by Python or numpy in training when it was recorded."""
    host_drawn = []
    for drawn in port_result.drawn:
        file = work / f"drawn-{drawn.name}.npy"
        np.save(file, drawn.value.numpy())
        host_drawn.append(HostDrawn(drawn.name, drawn.place, file))
    return tuple(host_drawn)


def _require_python(file: str, text: str) -> None:
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise PortError(
            f"the generated source is not valid Python ({file}:{error.lineno}: {error.msg})",
            "this is a bug of migrate port; please report it with the model",
        ) from error


def formatted(folder: Path) -> Sequence[str]:
    """Format the sources in the folder. Return a note if that is impossible."""
    if not is_installed("ruff"):
        return [f"the source is not formatted: it needs ruff ({how_to_install('port')})"]
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--quiet", "--target-version", "py311", "--no-cache"]
    for words in (["check", "--select", "I", "--fix"], ["format"]):
        command = [*ruff, *words, *options, "--line-length", str(_LINE), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return [f"the source is not formatted: ruff ended with {done.returncode}"]
    return ()


def _versions(original: OriginalModel) -> str:
    """Versions of the frameworks, and of transformers if the original is made of its classes."""
    bases = {base for module in original.module.modules() for base in type(module).__mro__}
    ours = any(base.__module__.partition(".")[0] == "transformers" for base in bases)
    names = ("torch", *(["transformers"] if ours else []), "jax", "flax")
    named = {name: installed(name) for name in names}
    return ", ".join(f"{name} {version}" for name, version in named.items() if version)

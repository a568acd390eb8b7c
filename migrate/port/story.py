"""`migrate port`: from what the user names to a folder with source, weights and proof."""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.installing import how_to_install, is_installed
from migrate.parity.ground.errors import ParityError
from migrate.parity.inputs.set import write_inputs
from migrate.port.compiler import compiled, has_compiler
from migrate.port.errors import PortError
from migrate.port.folder import port_name, record, require_place, writing
from migrate.port.initialisation import compared
from migrate.port.original import SEED, Given, Original, given_inputs, load_original
from migrate.port.proof import Arrays, asked, proven
from migrate.port.readme import readme_text
from migrate.port.results import Case, Ported
from migrate.port.texts import TEST_INPUTS, convert_text, package_text, test_text
from migrate.port.texts import Original as Way
from migrate.port.unused import unused_paths
from migrate.port.weights import INITIAL, PARAMS, Weights, stirred, write_weights
from migrate.versions import installed

Progress = Callable[[str], None]
_LINE = 100


@dataclass(frozen=True)
class PortOptions:
    """What is asked of a port.

    Attributes:
        output: the folder into which the port's own goes.
        name: of it, and of the package; None: as the target is called.
        inputs: as of `migrate parity --inputs`; none: what the model tells.
        count: inputs to make for the proof.
        weights: a torch checkpoint; None: the folder's, or those that the factory makes.
        stages: a folder for what each stage of the compiler made.
        lowerings: a file that registers lowerings of the user's.
        allow_stubs: whether missing operators become stubs.
        force: how often `--force` was said.
        proof: whether the port is compared with the original.
        timeout: seconds for one request to a side of the comparison.
        api: of Flax.
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


def port_model(target: str, options: PortOptions, command: str, progress: Progress) -> Ported:
    """Port a model, write its folder, and compare it with the original.

    Args:
        target: what the user named.
        options: what is asked.
        command: that makes it anew, for its README.
        progress: told what is being done.

    Raises:
        PortError: there is nothing to port, or no place to write to.
        MissingOperatorsError, EditedError: see there.
        ParityError, ConversionError: the model, its inputs or weights cannot be had, or the model cannot be
            recorded. Nothing is written.
    """
    if not has_compiler():
        raise PortError("this installation has no compiler", "install the whole of tpu-migrate")
    _require_readable(options)
    with tempfile.TemporaryDirectory(prefix="migrate-port-") as scratch:
        work = Path(scratch)
        progress("building the model")
        original = load_original(target, options.weights, work)
        name = port_name(options.name, _proposed(original))
        folder = options.output / name
        lost = require_place(folder, options.force)
        progress("making inputs")
        given = given_inputs(original, options.inputs, options.count, work / "inputs")
        progress("recording and translating the model")
        how: dict[str, Any] = {"lowerings": options.lowerings, "stages": options.stages}
        how["starts"] = original.starts
        made = compiled(
            given.model, given.tensors(), target, allow_stubs=options.allow_stubs, **how
        )
        with writing(folder) as place:
            progress("writing source and weights")
            weights = _written(place, folder, name, original, given, made, work)
            notes = [*weights.notes, *formatted(place)]
            cases: tuple[Case, ...] = ()
            if options.proof and not made.missing:
                wanted = list(asked(given.inputs, made.inputs, _takes(original, given)))
                state, params = weights.state, place / PARAMS if weights.state else None
                if state is not None and original.checkpoint is None:
                    state, params, note = _stirred(name, original, given, made, work)
                    notes += note
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
                )
            start = None
            if options.proof and not made.missing and made.watched:
                progress("comparing: initialisation")
                start = compared(original, place, name, made, _example(given), work)
            whose = original.weights if weights.state else ""
            names = sorted(path.name for path in place.iterdir() if path.is_file())
            (place / "README.md").write_text(
                readme_text(name, target, made, whose, cases, start, names, command, _versions())
            )
            files = record(place, target)
        return Ported(folder, files, target, made, whose, cases, tuple(notes), lost, start)


def _require_readable(options: PortOptions) -> None:
    """What cannot be read is said before anything is loaded."""
    for said, path in (("--weights", options.weights), ("--lowerings", options.lowerings)):
        if path is not None and not path.exists():
            raise PortError(f"{said} {path}: there is no such file", "check the path")


def _proposed(original: Original) -> str:
    """What the port is called where the user does not say it."""
    if original.folder is not None:
        named = original.folder.resolve().name
        kind = getattr(getattr(original.module, "config", None), "model_type", "")
        # A folder that is called so says nothing, nor does the hash of a snapshot.
        plain = named in ("model", "checkpoint", "pytorch_model") or len(named) >= 32
        return kind if plain and kind else named
    return original.target.spec.rpartition(":")[2].rpartition(".")[2]


def _takes(original: Original, given: Given) -> Callable[[Arrays], bool]:
    import torch

    from migrate.parity.sides.torch.call import call

    def takes(arrays: Arrays) -> bool:
        try:
            with torch.no_grad():
                call(given.model, given.model, given.tensors(arrays), original.target.shown)
        except ParityError:
            return False
        return True

    return takes


def _written(
    place: Path,
    folder: Path,
    name: str,
    original: Original,
    given: Given,
    made: Any,
    work: Path,
) -> Weights:
    """Write everything but the README into the place, which will be the folder."""
    sources = {"modeling.py": made.modeling, "config.py": made.config}
    what = f"{made.model_class} in Flax"
    shapes = {
        one: (array.shape, _narrow(array.dtype.name)) for one, array in given.inputs[0].items()
    }
    names = (made.model_class, made.config_class, what, shapes)
    sources["__init__.py"] = package_text(*names)
    example = _example(given)
    weights = write_weights(original.module, name, made.constants, example, place, work)
    spec = original.target.spec
    if weights.state is not None:
        sources["convert.py"] = convert_text(
            made.model_class, made.config_class, spec, weights.by_mapping, bool(made.constants)
        )
    if made.initial:
        from safetensors.numpy import save_file

        save_file(dict(made.initial), place / INITIAL)
    way = Way(
        spec,
        folder,
        original.checkpoint,
        original.folder is None or original.checkpoint is not None,
    )
    params = weights.state is not None
    sources["test_parity.py"] = test_text(made.model_class, way, SEED, params)
    for file, text in sources.items():
        _require_python(file, text)
        (place / file).write_text(text)
    if unused := unused_paths(place):
        (place / "__init__.py").write_text(package_text(*names, unused))
    write_inputs(work / "test", [given.inputs[0]])
    (place / TEST_INPUTS).write_bytes((work / "test" / "000.safetensors").read_bytes())
    return weights


def _narrow(dtype: str) -> str:
    """The dtype as JAX has it by default, with 32 bits."""
    return dtype.replace("64", "32")


def _example(given: Given) -> tuple[tuple[int, ...], ...] | None:
    """The shapes of the inputs, if these are images."""
    first = given.inputs[0]
    images = all(array.dtype.kind == "f" for array in first.values())
    return tuple(array.shape for array in first.values()) if images else None


def _stirred(
    name: str, original: Original, given: Given, made: Any, work: Path
) -> tuple[Path | None, Path, list[str]]:
    """Weights for the comparison where nobody trained any, for torch and for the port, and what to say."""
    model, count = stirred(original.module, SEED)
    folder = work / "stirred"
    folder.mkdir()
    weights = write_weights(model, name, made.constants, _example(given), folder, folder)
    note = f"compared with noise on {count} constant tensors (zeros hide what they multiply)"
    return weights.state, folder / PARAMS, [note] if count else []


def _require_python(file: str, text: str) -> None:
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise PortError(
            f"the source that was written is not Python ({file}:{error.lineno}: {error.msg})",
            "this is a fault of migrate port; please report it with the model",
        ) from error


def formatted(folder: Path) -> Sequence[str]:
    """Format the sources in the folder; a note where that cannot be done."""
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


def _versions() -> str:
    named = {name: installed(name) for name in ("torch", "transformers", "jax", "flax")}
    return ", ".join(f"{name} {version}" for name, version in named.items() if version)

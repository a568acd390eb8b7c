"""The compiler of `converters.graph`, asked for one model."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from converters.graph.writing.repeated.repeats import Repeats
from converters.model import imported
from migrate.port.errors import MissingOperatorsError, PortError


def has_compiler() -> bool:
    """Whether this installation has the compiler."""
    if find_spec("converters.graph") is None:
        return False
    return hasattr(import_module("converters.graph"), "port")


def compiled(
    module: Any,
    inputs: Mapping[str, Any],
    shown: str,
    *,
    allow_stubs: bool = False,
    lowerings: Path | None = None,
    stages: Path | None = None,
    starts: Any = None,
    methods: Mapping[str, Mapping[str, Any]] | None = None,
    api: str = "linen",
    cache: bool = False,
    repeats: Repeats = Repeats(),  # noqa: B008 (frozen)
    constrain: bool = False,
    arguments: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """The Flax source of a module.

    Args:
        module: the torch module.
        inputs: argument → tensor, to record it with.
        shown: the model, for messages.
        allow_stubs: whether operators without a lowering become functions to be filled in.
        lowerings: a file that registers lowerings of the user's own when it is imported.
        stages: a folder into which each stage of the compiler writes what it made.
        starts: how the module's factory was seen to initialize it.
        methods: further methods to port, each with what it is recorded with.
        api: API of Flax.
        cache: whether to port the model's cached forward.
        repeats: how repeated layers are written.
        constrain: whether activations between layers are constrained to a mesh.
        arguments: what the constructors of its modules were called with: path → name → value.

    Raises:
        MissingOperatorsError: operators have no lowering; all of them.
        PortError: there is no compiler, or the stages cannot be written.
        ConversionError: the model cannot be recorded, or the file of lowerings be imported.
    """
    if not has_compiler():
        raise PortError("this installation has no compiler", "install the whole of tpu-migrate")
    port = import_module("converters.graph").port
    # What the user's code prints is none of this command's output.
    with contextlib.redirect_stdout(sys.stderr):
        if lowerings is not None:
            with imported(f"--lowerings {lowerings}", str(lowerings)):
                pass
        port_result = port(
            module,
            inputs,
            starts,
            methods,
            api,
            cache,
            repeats,
            constrain=constrain,
            arguments=arguments,
        )
    if stages is not None:
        _write_stages(port_result.stages, stages)
    if port_result.missing and not allow_stubs:
        raise MissingOperatorsError(shown, port_result.missing)
    return port_result


def _write_stages(texts: Mapping[str, str], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    except OSError as error:
        raise PortError(
            f"--stages {folder}: cannot be written ({error.strerror})", "name a folder"
        ) from None

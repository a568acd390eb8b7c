"""The process in which the user's model is loaded and lowered: a request in a file, the answer in another."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from converters.errors import ConversionError
from converters.installing import missing_behind
from migrate.errors import MigrateError
from migrate.fit.lowered.of_program import is_program, lower_program
from migrate.fit.lowered.step import LoweredStep, Wanted
from migrate.parity.sides.jax.runner import JaxRunner
from migrate.parity.sides.load import load_runner
from migrate.parity.sides.runner import Runner
from migrate.parity.sides.target import parse_target


def lower(wanted: Wanted) -> LoweredStep:
    """Load the target that the user named, and lower it with its framework.

    Raises:
        MigrateError: it cannot be loaded, or does not take the inputs.
    """
    if is_program(wanted.target):
        return lower_program(wanted)
    runner, _ = load_runner(parse_target(wanted.target))
    if wanted.inputs:
        return _lowered(runner, wanted)
    inputs = suggested(runner)
    note = f"inputs: {', '.join(inputs)}, which the model takes; pass --inputs for those of your training"
    step = _lowered(runner, replace(wanted, inputs=inputs))
    return replace(step, notes=(note, *step.notes))


def suggested(runner: Runner) -> tuple[str, ...]:
    """Return inputs that the model takes, in the form of `--inputs`, as `migrate port` finds them.

    Raises:
        InputsError: its inputs cannot be told.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-fit-") as folder:
        suggested = runner.suggest_inputs(1, 0, Path(folder) / "suggested")
        return tuple(
            f"{name}={array.dtype}[{','.join(map(str, array.shape))}]"
            for name, array in suggested[0].items()
        )


def _lowered(runner: Runner, wanted: Wanted) -> LoweredStep:
    if isinstance(runner, JaxRunner):
        from migrate.fit.lowered.of_jax import lower_jax

        return lower_jax(runner, wanted)
    if runner.kind == "tpu":
        from migrate.fit.lowered.of_tpu import lower_tpu

        return lower_tpu(runner.module, wanted)  # type: ignore[attr-defined]
    from migrate.fit.lowered.of_torch import lower_torch

    return lower_torch(runner.module, wanted)  # type: ignore[attr-defined]


def main(request: Path, answer: Path, program: Path) -> None:
    """Write the programs, one after the other, and then the answer."""
    wanted = Wanted(**json.loads(request.read_text()))
    try:
        step = lower(wanted)
    except (MigrateError, ConversionError) as error:
        said: dict[str, object] = {"what": error.what, "remedy": error.remedy}
    except ImportError as error:
        if (missing := missing_behind(error)) is None:
            raise
        said = {"what": missing.what, "remedy": missing.remedy}
    else:
        sizes = [len(part.program.data) for part in step.parts]
        program.write_bytes(b"".join(part.program.data for part in step.parts))
        said = {
            "parts": [
                {
                    "size": size,
                    "name": part.program.name,
                    "format": part.program.format,
                    "partitioned": part.program.partitioned,
                    "aliases": part.program.aliases,
                    "arguments": [(argument.kind, argument.name) for argument in part.arguments],
                    "outputs": [(output.kind, output.name) for output in part.outputs],
                }
                for part, size in zip(step.parts, sizes, strict=True)
            ],
            "trains": step.trains,
            "notes": step.notes,
            "package": step.package,
            "eager_bytes": step.eager_bytes,
            "repeated": step.repeated,
        }
    written = answer.with_suffix(".part")
    written.write_text(json.dumps(said))
    written.rename(answer)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

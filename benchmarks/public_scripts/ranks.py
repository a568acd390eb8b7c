"""Several ranks of a script beside its JAX program on several devices, with the whole batch of an update.

    python benchmarks/public_scripts/ranks.py PROGRAM UPDATES OUTPUT

trains the program on the devices that it finds, without dropout, and writes losses and weights by torch's
names to OUTPUT. `training.py --ranks 2` calls it.

The ranks of a script with `DistributedSampler` read together what one process reads with a batch that is as
many times larger. The mean of the ranks' losses is then the loss of that batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
# What `migrate train` seeds torch with in a script that does not seed it; ranks take it from their launcher.
_UNSEEDED = "MIGRATE_SEED_OF_LAUNCHER"
_OF_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def beside_ranks(
    script: Path,
    args: list[str],
    program: Path,
    *,
    ranks: int,
    devices: int,
    updates: int,
    seconds: float,
    folder: Path,
    environment: dict[str, str],
) -> dict[str, float | str]:
    """Largest relative differences of losses and weights of a program from those of the script's ranks.

    Args:
        script: the script.
        args: its arguments, with the batch of one rank.
        program: the program, written with the batch of all.
        ranks: gloo ranks on the CPU.
        devices: simulated devices of the program.
        updates: updates to compare.
        seconds: time limit of each run.
        folder: where the script runs.
        environment: variables of both.
    """
    from migrate.prove.recording import records

    with tempfile.TemporaryDirectory(prefix="ranks-") as scratch:
        kept, output = Path(scratch) / "ranks.record", Path(scratch) / "program.npz"
        plain = {k: v for k, v in environment.items() if k not in _OF_RANK}
        command = [sys.executable, str(Path(__file__)), "--ranks", str(script), str(kept)]
        command += [str(ranks), str(updates), str(seconds), *args]
        if said := failed(command, folder, plain, seconds):
            return {"ranks": f"{ranks} ranks: {said}"}
        flags = device_flags(devices)
        command = [sys.executable, str(Path(__file__)), str(program), str(updates), str(output)]
        on = {**environment, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        if said := failed(command, folder, on, seconds):
            return {"ranks": f"{devices} devices: {said}"}
        return compared(records.read(kept), dict(np.load(output)))


def beside_devices(
    program: Path,
    *,
    devices: int,
    updates: int,
    seconds: float,
    folder: Path,
    environment: dict[str, str],
) -> dict[str, float | str]:
    """Largest relative difference of weights that a program trains on one device and on several.

    It is measured with floats of 32 bits and of 64: what rounding moves is much smaller with 64. Weights, or
    parts of them, whose gradient is rounding in all updates are left out, as in `migrate prove`.

    Args:
        program: the program.
        devices: simulated devices.
        updates: updates of each run.
        seconds: time limit of each run.
        folder: where it runs: that of the script, whose data may have relative paths.
        environment: variables of both runs.
    """
    from migrate.prove.recording import weights

    result: dict[str, float | str] = {}
    for name, bits in (("devices", 32), ("devices in float64", 64)):
        trained = []
        with tempfile.TemporaryDirectory(prefix="devices-") as scratch:
            for count in (1, devices):
                trained.append(Path(scratch) / f"trained-{count}.safetensors")
                command = [sys.executable, str(Path(__file__)), "--train", str(program), str(bits)]
                command += ["--updates", str(updates), "--save", str(trained[-1])]
                on = {**environment, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": device_flags(count)}
                if said := failed(command, folder, on, seconds):
                    return {**result, name: f"{count} devices: {said}"}
            rounding = weights.noise(*trained)
            apart = weights.distances(*trained)
            result[name] = max(x for n, x in apart.items() if n not in rounding)
            result["rounding alone"] = _rounding(weights.noise_parts(*trained), rounding)
    return result


def _rounding(parts: Iterable[str], whole: Collection[str]) -> str:
    """Name the weights of which parts are rounding, and say which are not so as a whole."""
    return ", ".join(name if name in whole else f"{name} (a part)" for name in parts)


def device_flags(devices: int) -> str:
    """XLA's flags for simulated devices; on a busy machine they wait for each other for longer."""
    wait = "--xla_cpu_collective_call"
    return (
        f"--xla_force_host_platform_device_count={devices} {wait}_warn_stuck_timeout_seconds=600 "
        f"{wait}_terminate_timeout_seconds=1200"
    )


def failed(command: list[str], folder: Path, environment: dict[str, str], seconds: float) -> str:
    """Last line of a command that fails or takes too long; "" if it does not."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"longer than {seconds:.0f} seconds"
    if not done.returncode:
        return ""
    lines = f"{done.stdout}\n{done.stderr}".split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it failed")[:200]


def compared(ranks: dict[int, Any], program: dict[str, Any]) -> dict[str, float | str]:
    """Largest differences: of losses of the updates, and of weights after some of them.

    Weights, or parts of them, whose gradient is rounding in all updates are left out, as in `migrate prove`.

    Args:
        ranks: records of the ranks, as `migrate prove` writes them.
        program: losses of each update ("losses"), and weights by "update/name".
    """
    import torch

    from migrate.prove.recording import weights

    steps = [ranks[rank].steps for rank in sorted(ranks)]
    theirs = np.array([[sum(step.losses) for step in own] for own in steps]).mean(axis=0)
    ours = program["losses"][: len(theirs)]
    if len(ours) != len(theirs):
        return {"ranks": f"{len(program['losses'])} updates, in the ranks {len(theirs)}"}
    result: dict[str, float | str] = {
        "ranks' losses": float(np.max(np.abs(ours - theirs) / np.abs(theirs)))
    }
    worst, at = 0.0, ""
    for (_, step), file in ranks[0].snapshots.items():
        if step > len(ours):
            continue
        own = {k.partition("/")[2]: v for k, v in program.items() if k.startswith(f"{step}/")}
        matches = {name: _named(name, own) for name in weights.load_file(file)}
        if missing := [name for name, match in matches.items() if match is None]:
            return {**result, "ranks": f"{missing[0]} is not in the program"}
        ours_file = file.with_suffix(".program")
        shares = weights._shares(file)
        tensors = {name: torch.from_numpy(own[str(match)]) for name, match in matches.items()}
        weights.save(tensors, ours_file, shares)
        rounding = weights.noise(file, ours_file)
        result["rounding alone"] = _rounding(weights.noise_parts(file, ours_file), rounding)
        for name, apart in weights.distances(file, ours_file).items():
            if name not in rounding and not apart <= worst:
                worst, at = apart, f"{name} after {step} updates"
    return {**result, "ranks' weights": worst, "ranks": f"{len(ours)} updates; largest: {at}"}


def _named(name: str, own: dict[str, Any]) -> str | None:
    """The program's name of a weight: the same without the modules around it."""
    parts = name.split(".")
    for start in range(len(parts)):
        inner = ".".join(parts[start:])
        match = [n for n in own if n == inner or n.endswith(f".{inner}")]
        if len(match) == 1:
            return match[0]
    return None


def record_ranks(
    script: str, kept: str, ranks: str, updates: str, seconds: str, *args: str
) -> None:
    """Run the script on gloo ranks, without dropout and autocast, and keep their record in a folder."""
    from migrate.prove.proof import Runs
    from migrate.prove.settings import Settings
    from migrate.train.watch import seeds

    os.environ[_UNSEEDED] = str(seeds._SEED)
    settings = Settings(amp="off", steps=int(updates), timeout=float(seconds))
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        runs = Runs(Path(folder), Path(script), Path(script), args, int(ranks), settings)
        run = runs.record("original")
        run.folder.rename(kept)


def train(program: str, updates: str, output: str) -> None:
    """Train a program without dropout, and write losses and weights."""
    sys.path.insert(0, program)
    import jax
    from flax import linen

    from converters.reverse import by_torch_names
    from migrate.prove.recording.records import SNAPSHOT_STEPS
    from migrate.train.watch import seeds

    seeds.seed_host()  # the data of a script without a seed are those of its ranks
    seeds.seed_torch()
    linen.Dropout.__call__ = lambda self, inputs, *args, **kwargs: inputs  # type: ignore[assignment]
    loop: Any = import_module("train")
    batches: Any = import_module("data").batches
    arrays: dict[str, Any] = {}
    losses: list[float] = []
    with jax.default_matmul_precision("highest"):
        state = loop.load()
        for number, micro in enumerate(batches(), 1):
            state, values, _ = loop.train_step(state, micro)
            losses.append(sum(float(value) for value in values))
            if number in SNAPSHOT_STEPS:
                tree = {"params": state.params, **state.variables}
                named = by_torch_names(tree, Path(program) / "params.torch.safetensors")
                arrays |= {f"{number}/{name}": value for name, value in named.items()}
            if number == int(updates):
                break
    np.savez(output, losses=np.array(losses), **arrays)
    print(json.dumps({"devices": jax.device_count(), "updates": len(losses)}))


def run_program(program: str, bits: str, *args: str) -> None:
    """Run `train.py` of a program with floats of 32 or 64 bits; beside weights store gradients' shares."""
    sys.path.insert(0, program)
    import jax
    import jax.numpy as jnp
    import torch
    from flax.traverse_util import flatten_dict
    from safetensors.numpy import load_file

    from migrate.prove.recording import weights
    from migrate.train.watch import seeds

    seeds.seed_host()  # a script without a seed has other data in each run, and so has its program
    seeds.seed_torch()
    jax.config.update("jax_enable_x64", bits == "64")
    loop: Any = import_module("train")
    load = loop.load
    gradients_of = getattr(loop, "value_and_grad", None)  # a program of several updates has others
    shares: dict[str, list[float]] = {}

    def wide(x: Any) -> Any:
        if not hasattr(x, "dtype") or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jax.device_put(np.asarray(x, np.float64), loop.EVERYWHERE)

    def noting(*values: Any) -> Any:
        value, gradients = gradients_of(*values)
        named = flatten_dict({"params": gradients}, sep="/")
        flat = {name: torch.from_numpy(np.array(x, np.float64)) for name, x in named.items()}
        whole = sum(float(x.square().sum()) for x in flat.values()) ** 0.5
        for name, x in flat.items():
            norms = x.reshape(weights.parts(x), -1).norm(dim=1) / (whole or 1.0)
            held = shares.setdefault(name, [0.0] * len(norms))
            shares[name] = [max(pair) for pair in zip(held, norms.tolist(), strict=True)]
        return value, gradients

    if bits == "64":
        loop.load = lambda *values: jax.tree.map(wide, load(*values))
    if gradients_of is not None:
        loop.value_and_grad = noting
    sys.argv = [f"{program}/train.py", *args]
    with jax.default_matmul_precision("highest"):
        loop.main()
    file = Path(args[-1])
    weights.save({n: torch.tensor(x) for n, x in load_file(file).items()}, file, shares)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.path.remove(str(Path(__file__).parent))  # its names are no modules of a program
    kinds = {"--ranks": record_ranks, "--train": run_program}
    if sys.argv[1] in kinds:
        kinds[sys.argv[1]](*sys.argv[2:])
    else:
        train(*sys.argv[1:])

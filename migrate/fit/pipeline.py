"""`migrate fit`: make the program of what the user named, and give a verdict for each slice."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from converters.installing import require_installed
from migrate.compiler.compile import NEEDED
from migrate.counts import binary_size, many
from migrate.fit.batch import batch_of, batch_option, largest, of_batch, with_batch
from migrate.fit.errors import FitError
from migrate.fit.judge import judge
from migrate.fit.lowered.changed import CHANGES
from migrate.fit.lowered.of_script import lower_script
from migrate.fit.lowered.start import PROGRAMS, lowered, partitions_of, read_program
from migrate.fit.lowered.step import LoweredStep, Wanted
from migrate.fit.products import Slice
from migrate.fit.verdict import FitReport, FitVerdict, SliceResult
from migrate.parity.sides.target import parse_target
from migrate.progress import Progress, SharedCount
from migrate.versions import NEEDS

# How a remedy is called in the answer, of a model and of a script.
_WORDS = {
    ("batch", False): "half the batch",
    ("bf16", True): "bf16 (automatic mixed precision)",
    ("remat", True): "remat (blocks)",
}
_LIBTPU = re.compile(r"libtpu *={2,3} *([\w.]+\*?)")


@dataclass(frozen=True)
class ScriptTarget:
    """A script that trains.

    Attributes:
        runs: the torch_xla form of the script.
        places: maps a location in that file to the location that the user knows.
    """

    runs: Path
    places: Callable[[str], str] = str


@dataclass(frozen=True)
class FitOptions:
    """Options of `migrate fit`.

    Attributes:
        products: the slices.
        by_default: whether the user named none, so that `products` is the default.
        inputs, optimizer, loss, rules, dtype: see `Wanted`.
        mesh: axis → devices; {} is data=N.
        args: arguments of a script.
        remedies: remedies from `REMEDIES`, each compiled too.
        auto: whether the largest batch that fits is looked for.
        batch_option: the option of a script that is its batch.
        torchrun: whether a script is given the variables of torchrun.
        quick: see `judge`.
        timeout: seconds for lowering, and for each compilation.
    """

    products: tuple[Slice, ...]
    inputs: tuple[str, ...] = ()
    optimizer: str = ""
    loss: str = "auto"
    mesh: tuple[tuple[str, int], ...] = ()
    rules: str = ""
    dtype: str = ""
    args: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    auto: bool = False
    batch_option: str = ""
    torchrun: bool = False
    quick: bool = False
    timeout: float = 1800.0
    by_default: bool = False


def fit(
    target: str, options: FitOptions, progress: Progress, script: ScriptTarget | None = None
) -> FitReport:
    """Compile what the user named for each slice.

    Args:
        target: a script, a model with `options.inputs`, or a file with StableHLO.
        options: the rest.
        progress: takes what is being done, and the number of compilations.
        script: the torch_xla form of a script, where `target` is one.

    Raises:
        FitError: no program can be made of it, or the mesh and a slice do not go together.
    """
    started = time.monotonic()
    _require_uses(target, options, script)
    require_frameworks(is_script=script is not None)
    for product in options.products:
        _require_mesh(options, product)
    if script is None and not target.endswith(PROGRAMS):
        parse_target(target)  # a path that leads nowhere is no reason to start a process
    tell = SharedCount(progress, len(options.products) * (1 + len(options.remedies)), "compilation")
    steps: dict[int, LoweredStep] = {}
    verdicts, notes = [], dict[str, None]()
    trains = False
    for product in options.products:
        if product.devices not in steps:
            devices = many(product.devices, "device")
            tell(f"making the program of {target} for {product.name}, {devices}")
            steps[product.devices] = _step(target, options, product, script)
        step = steps[product.devices]
        notes.update(dict.fromkeys(step.notes))
        trains = step.trains
        verdicts.append(_judged(step, product, options, tell))
        notes.update(dict.fromkeys(another_libtpu(step.framework)))
    tried = list(_tried(target, options, verdicts, tell, script))
    if options.auto:
        tried += _largest(target, options, verdicts, progress, script)
    return FitReport(
        target,
        trains,
        tuple(verdicts),
        (*_by_default(options), *notes),
        tuple(tried),
        time.monotonic() - started,
        max((step.host_seconds for step in steps.values()), default=0.0),
    )


def _by_default(options: FitOptions) -> Iterator[str]:
    """Yield the slice that nobody asked for: it decides the number of devices, and each device's batch."""
    if options.by_default:
        devices = many(options.products[0].devices, "device")
        yield f"compiled for {options.products[0].name} ({devices}), the default; --tpu names another slice"


def another_libtpu(framework: str) -> Iterator[str]:
    """Return a note if a framework is known to need another libtpu than the one used here."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        asked = [_LIBTPU.match(requirement) for requirement in metadata.requires(framework) or ()]
        wanted = next((match[1] for match in asked if match), "")
        there = metadata.version("libtpu")
        if wanted and not f"{there}.".startswith(wanted.removesuffix("*").rstrip(".") + "."):
            yield (
                f"{framework} {metadata.version(framework)} runs on a TPU with libtpu {wanted}. Here libtpu "
                f"{there} compiled, and its results may differ"
            )


def _judged(
    step: LoweredStep, product: Slice, options: FitOptions, tell: SharedCount
) -> FitVerdict:
    size = sum(len(part.program.data) for part in step.parts)
    tell(f"compiling for {product.name} ({binary_size(size)} of program)")
    verdict = judge(step, product, timeout=options.timeout, quick=options.quick)
    tell.done += 1
    return verdict


def _step(
    target: str, options: FitOptions, product: Slice, script: ScriptTarget | None, changed: str = ""
) -> LoweredStep:
    if script is not None:
        return lower_script(
            script.runs,
            options.args,
            devices=product.devices,
            shown=target,
            timeout=options.timeout,
            places=script.places,
            torchrun=options.torchrun,
            changed=changed,
        )
    if target.endswith(PROGRAMS):
        step = read_program(Path(target))
        spread = partitions_of(step.parts[0].program.data)
        if spread not in (1, product.devices):
            raise FitError(
                f"{target} is spread over {many(spread, 'device')}, {product.name} has {product.devices}",
                "use a slice with as many devices as the program",
            )
        return step
    return lowered(_wanted(target, options, product), timeout=options.timeout)


def require_frameworks(*, is_script: bool) -> None:
    """Check that the modules of `migrate fit` are installed, before anything is rewritten or compiled.

    Raises:
        MissingDependencyError: the message names the missing modules and the command.
    """
    require_installed(*(NEEDS["run"] if is_script else ()), *NEEDED)


def _wanted(target: str, options: FitOptions, product: Slice) -> Wanted:
    return Wanted(
        target,
        options.inputs,
        options.optimizer,
        options.loss,
        dict(options.mesh),
        options.rules,
        product.devices,
        options.dtype,
    )


def _require_uses(target: str, options: FitOptions, script: ScriptTarget | None) -> None:
    """Refuse what would have no effect on what was named."""
    a_model = script is None and not target.endswith(PROGRAMS)
    of_models = {
        "--inputs": options.inputs,
        "--train": options.optimizer,
        "--mesh": options.mesh,
        "--dtype": options.dtype,
        "--batch": options.auto and not options.batch_option,
        "--loss": options.loss != "auto",
    }
    if script is not None:
        if options.auto or "batch" in options.remedies:
            if not options.batch_option:
                raise FitError(
                    f"{target}: the batch option of the script is unknown",
                    "pass it: --batch-option --batch-size",
                )
            batch_option(options.args, options.batch_option)
        if "shard" in options.remedies:
            raise FitError(f"{target}: --try shard applies to Flax models only", "leave it out")
    elif options.batch_option or options.torchrun:
        name = "--batch-option" if options.batch_option else "--torchrun"
        raise FitError(f"{target}: {name} applies to scripts only", "leave it out")
    if a_model and not options.inputs and (options.auto or "batch" in options.remedies):
        name = "--batch auto" if options.auto else "--try batch"
        raise FitError(
            f"{target}: {name} changes the batch of --inputs",
            "add --inputs 'x=float32[8,16]'",
        )
    named = [name for name, value in of_models.items() if value]
    if named and not a_model:
        raise FitError(
            f"{target}: {named[0]} applies to models only, not to scripts or programs",
            "leave it out",
        )
    if options.remedies and script is None and not a_model:
        raise FitError(
            f"{target}: --try applies to models and scripts, not to programs",
            "leave it out",
        )
    if "remat" in options.remedies and a_model and not options.optimizer:
        raise FitError(
            f"{target}: --try remat needs a training step", "add --train, or leave --try remat out"
        )
    if options.args and script is None:
        raise FitError(
            f"{target}: takes no arguments",
            "arguments after -- are for scripts; each input has an --inputs of its own",
        )


def _require_mesh(options: FitOptions, product: Slice) -> None:
    count = 1
    for _, devices in options.mesh:
        count *= devices
    if options.mesh and count != product.devices:
        said = ",".join(f"{axis}={devices}" for axis, devices in options.mesh)
        raise FitError(
            f"--mesh {said} has {many(count, 'device')}, {product.name} has {product.devices}",
            "use a mesh with as many devices as the slice",
        )


def _tried(
    target: str,
    options: FitOptions,
    verdicts: Sequence[FitVerdict],
    tell: SharedCount,
    script: ScriptTarget | None,
) -> list[SliceResult]:
    """Compile the step again with each remedy. If a remedy cannot be applied, the result says why."""
    tried = []
    for remedy in options.remedies:
        again: list[FitVerdict] = []
        steps: dict[int, LoweredStep] = {}
        what = _WORDS.get((remedy, script is not None), _WORDS.get((remedy, False), remedy))
        for verdict in verdicts:
            product = verdict.product
            tell(f"with {remedy}: making the program for {many(product.devices, 'device')}")
            try:
                if product.devices not in steps:
                    steps[product.devices] = _changed(target, options, product, script, remedy)
            except FitError as error:
                what = f"{what}: {error.what}"
                break
            again.append(_judged(steps[product.devices], product, options, tell))
        tried.append(SliceResult(what, tuple(again)))
    return tried


def _changed(
    target: str, options: FitOptions, product: Slice, script: ScriptTarget | None, remedy: str
) -> LoweredStep:
    """The step with a remedy."""
    if script is None:
        wanted = _remedied(_wanted(target, options, product), remedy)
        return lowered(wanted, timeout=options.timeout)
    if remedy in CHANGES:
        return _step(target, options, product, script, remedy)
    batch = max(1, batch_option(options.args, options.batch_option) // 2)
    args = with_batch(options.args, options.batch_option, batch)
    return _step(target, replace(options, args=args), product, script)


def _remedied(wanted: Wanted, remedy: str) -> Wanted:
    if remedy == "bf16":
        return replace(wanted, dtype="bfloat16")
    if remedy == "remat":
        return replace(wanted, remat=True)
    if remedy == "shard":
        return replace(wanted, shard=True)
    return replace(wanted, inputs=of_batch(wanted.inputs, max(1, batch_of(wanted.inputs) // 2)))


def _largest(
    target: str,
    options: FitOptions,
    verdicts: Sequence[FitVerdict],
    progress: Progress,
    script: ScriptTarget | None,
) -> list[SliceResult]:
    """The largest batch of each slice that fits."""
    tried: list[SliceResult] = []
    for verdict in verdicts:
        product = verdict.product

        def judged(batch: int, product: Slice = product) -> FitVerdict:
            progress(f"trying batch {batch} on {product.name}")
            if script is not None:
                args = with_batch(options.args, options.batch_option, batch)
                step = _step(target, replace(options, args=args), product, script)
            else:
                inputs = of_batch(options.inputs, batch)
                step = _step(target, replace(options, inputs=inputs), product, script)
            return judge(step, product, timeout=options.timeout, quick=options.quick, explain=False)

        if script is not None:
            name, first = options.batch_option, batch_option(options.args, options.batch_option)
        else:
            name, first = "batch per replica", batch_of(options.inputs)
        tried += largest(name, first, verdict, judged)
    return tried

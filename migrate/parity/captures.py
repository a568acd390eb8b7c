"""Everything that the sides compute for a comparison, on disk: as they run, and layer by layer on the truth's
inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from migrate.parity.align import align, load_alignment_file
from migrate.parity.alignment import Alignment
from migrate.parity.dump import Dump
from migrate.parity.options import Options
from migrate.parity.prepare import Prepared
from migrate.parity.profiles import find_profile
from migrate.parity.sides.runner import Forced
from migrate.parity.sides.settings import TRUTH, Precision, Settings
from migrate.parity.sides.side import Side

# From the coarsest to the finest: the emulation is of the coarser of the two sides.
_PRECISIONS: tuple[Precision, ...] = ("default", "high", "highest")
_PROFILES: dict[str, Precision] = {"tpu-default": "default", "f32-high": "high"}


@dataclass(frozen=True)
class Captured:
    """What one of the four computed: A, B, the truth or the emulation.

    Attributes:
        settings: with which.
        dump: as it runs.
        alignment: with the truth.
        local: with each layer fed with the truth's inputs; None: layers are not compared.
    """

    settings: Settings
    dump: Dump
    alignment: Alignment
    local: Dump | None = None


@dataclass(frozen=True)
class Captures:
    """Of all four.

    Attributes:
        truth: in float64.
        a, b, e: the sides, and the truth's model in the precision that the coarser of them declares.
        seconds: of the plain passes, by who made them.
    """

    truth: Dump
    a: Captured
    b: Captured
    e: Captured
    seconds: Mapping[str, float]


def capture_all(
    a: Side,
    b: Side,
    ready: Prepared,
    options: Options,
    work: Path,
    progress: Callable[[str], None],
) -> Captures:
    """Run both sides, the truth and the emulation.

    Raises:
        ParityError: a side cannot run.
    """
    source = a if ready.truth_of_a else b
    seconds: dict[str, float] = {}

    def run(name: str, side: Side, settings: Settings) -> Dump:
        progress(f"running {_WORDS[name]}")
        folder = work / name
        seconds[name] = side.capture_into(settings, ready.inputs, folder, layers=options.layers)
        return Dump(folder)

    truth = run("truth", source, TRUTH)
    dumps = {"a": run("a", a, ready.a), "b": run("b", b, ready.b)}
    settings = {"a": ready.a, "b": ready.b, "e": emulation(ready.a, ready.b, options.profile)}
    # A torch side on the CPU in the very precision is the emulation.
    same = "a" if ready.truth_of_a else "b"
    if source.kind == "torch" and _plain(settings[same]) == settings["e"]:
        dumps["e"] = dumps[same]
    else:
        dumps["e"] = run("e", source, settings["e"])
    explicit = None if options.align is None else load_alignment_file(options.align)
    sides = {"a": a, "b": b, "e": source}
    own = ready.weights_a if ready.truth_of_a else ready.weights_b
    weights = {"a": ready.weights_a, "b": ready.weights_b, "e": own}
    found: dict[str, Captured] = {}
    for name, side in sides.items():
        if name == "e" and dumps["e"] is dumps[same]:
            found[name] = found[same]
            continue
        alignment = align(
            truth,
            dumps[name],
            weights[name].names,
            explicit if side is not source else None,
        )
        local = None
        if options.layers:
            progress(f"running {_WORDS[name]} on the truth's inputs, layer by layer")
            folder = work / f"{name}-local"
            forced = Forced(truth.folder, alignment)
            side.capture_into(settings[name], ready.inputs, folder, forced=forced)
            local = Dump(folder)
        found[name] = Captured(settings[name], dumps[name], alignment, local)
    return Captures(truth, found["a"], found["b"], found["e"], seconds)


_WORDS = {
    "truth": "the truth, float64 on the CPU",
    "a": "side A",
    "b": "side B",
    "e": "the emulation of the declared precision",
}


def emulation(a: Settings, b: Settings, profile: str | None = None) -> Settings:
    """The settings of the truth's model in the precision that the sides are held to, on the CPU.

    Args:
        a, b: the sides': the coarser of the two is emulated.
        profile: the limits that the user names, whose precision is emulated instead.
    """
    if profile is not None:
        named = find_profile(profile)
        if named.dtype != "float32":
            return Settings(dtype=named.dtype, device="cpu")
        return Settings(precision=_PROFILES.get(named.name, "highest"), device="cpu")
    halves = [one.dtype for one in (a, b) if one.dtype in ("bfloat16", "float16")]
    if halves:
        return Settings(dtype=halves[-1], device="cpu")
    coarser = min(a.precision, b.precision, key=_PRECISIONS.index)
    return Settings(precision=coarser, device="cpu")


def _plain(settings: Settings) -> Settings:
    """The settings without what does not change what a torch model computes on the CPU."""
    if settings.device not in ("", "cpu") or settings.compiled or settings.batch is not None:
        return settings
    return dataclasses.replace(
        Settings(), dtype=settings.dtype, precision=settings.precision, device="cpu"
    )

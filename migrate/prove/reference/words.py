"""Messages about the machine on which a reference was recorded."""

from __future__ import annotations

from collections import Counter

from migrate.prove.compare.gates import judged_noise
from migrate.prove.compare.noise_floor import larger
from migrate.prove.reference.file import Reference


def devices(reference: Reference) -> str:
    """Devices of its ranks, and their modes: "2 × NVIDIA H100, TF32 in convolutions"."""
    kinds = Counter(
        machine.name if machine.kind == "cuda" else "a rank of the CPU"
        for machine in reference.machines.values()
    )
    parts = [f"{count} × {name}" for name, count in kinds.items()]
    return ", ".join([*parts, *modes(reference)]) or "an unknown device"


def modes(reference: Reference) -> tuple[str, ...]:
    """Modes of any of its ranks, TF32 first."""
    all_modes = {mode for machine in reference.machines.values() for mode in machine.modes}
    return tuple(sorted(all_modes, key=lambda mode: (not mode.startswith("TF32"), mode)))


def beginning(reference: Reference) -> str:
    """Prefix of a verdict that rests on a record."""
    return f"against the record of {devices(reference)}: "


def noise(reference: Reference) -> str:
    """Noise of the original on that machine, in words; "" if it was not measured."""
    floor = None
    for measured in reference.floors:
        floor = larger(floor, measured)
    if floor is None:
        return ""
    values, weights = judged_noise(floor)
    return f"{values:.1e} in losses and gradient norms, {weights:.1e} in weights"


def notes(reference: Reference) -> tuple[str, ...]:
    """Notes on the record for readers of a proof."""
    versions = {
        f"{name} {version}"
        for machine in reference.machines.values()
        for name, version in machine.versions.items()
    }
    lines = [
        f"the original was recorded on {devices(reference)} ({', '.join(sorted(versions))}, tpu-migrate "
        f"{reference.made_by})"
    ]
    if measured := noise(reference):
        again = " and ".join(dict.fromkeys(reference.measured))
        lines.append(f"its noise was measured there ({again}): up to {measured}")
    if any(machine.tf32 for machine in reference.machines.values()):
        lines.append(
            "the original multiplied float32 in TF32, which keeps 11 of 24 bits; the rewrite does not. The "
            "noise includes this difference, so smaller faults are not detected"
        )
    if not reference.settings["deterministic"]:
        lines.append(
            "recorded with --no-deterministic: a GPU, the CPU and XLA draw different numbers from one seed, "
            "so that what the script draws on its device differs"
        )
    elif any(machine.kind == "cuda" for machine in reference.machines.values()):
        lines.append(
            "what the script draws on its device was drawn on the host there, as it is here; not made alike: "
            "rrelu, and what is drawn by C++ or CUDA code under no function of torch"
        )
    return tuple(lines)

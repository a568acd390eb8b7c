"""Terminal view and JSON of `migrate port`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from migrate.counts import many
from migrate.report.text.plain import finite, plain_value
from migrate.report.text.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from migrate.port.errors import MissingOperatorsError
    from migrate.port.mesh.results import MeshRun
    from migrate.port.numerics.results import Numerics
    from migrate.port.results import Ported, ProofCase

FORMAT = 1  # of the JSON
# Fixed sizes that are shown with the reason.
_HELD = 8


def port_summary(ported: Ported) -> list[RenderableType]:
    """Return the verdict, the files, what to know, and the proof."""
    from rich.text import Text

    port = ported.port
    style = "bold green" if ported.matches and ported.cases else "bold red"
    lines: list[RenderableType] = [
        Text.assemble((f"{verdict(ported)}: ", style), f"{port.model_class} in {ported.folder}"),
        "",
        f"  {', '.join(ported.files)}",
    ]
    source = len(port.modeling.splitlines())
    classes = many(len(port.origin), "class", "classes")
    lines.append(Text(f"  modeling.py: {many(source, 'line')}, from {classes} of the original"))
    if ported.weights:
        lines.append(Text(f"  params.safetensors: {ported.weights}"))
    for title, said in (
        ("free axes", (*port.free, *(ported.sizes.free if ported.sizes else ()))),
        ("bound", tuple(entry.text for entry in port.bounds)),
        ("number that stays as recorded", port.baked),
        ("other sizes", _sizes(ported)),
        ("training", (f"evaluation only: {port.refused}",) if port.refused else ()),
        ("note", (*port.notes, *ported.notes)),
        ("overwritten, with your edits", ported.lost),
    ):
        lines.extend(Text(f"  {title}: {entry}") for entry in said)
    if port.missing:
        lines += ["", "Stubs to fill in:", missing_table(port.missing)]
    if ported.cases:
        lines += ["", _cases(ported.cases)]
    if ported.numerics:
        lines += ["", _numerics(ported.numerics)]
        lines += [
            Text(f"  {entry.setting}: {detail}")
            for entry in ported.numerics
            for detail in entry.details
        ]
    if ported.cached is not None:
        distance = f" ({ported.cached.distance:.1e})" if not ported.cached.error else ""
        lines += ["", Text(f"{ported.cached.name}: {ported.cached.verdict}{distance}")]
    if ported.meshes:
        lines += ["", _meshes(ported.meshes)]
    lines += [Text(said) for said in _start(ported)]
    lines.extend(Text(said, "bold red") for said in _parting(ported.cases))
    return lines


def _sizes(ported: Ported) -> tuple[str, ...]:
    """Return lines about the proven sizes and the fixed sizes."""
    sizes = ported.sizes
    if sizes is None:
        return ()
    proven = ", ".join(f"{name} {here} → {there}" for name, here, there in sizes.changed)
    held = [f"fixed: {entry.name}={entry.value}, {entry.why}" for entry in sizes.held]
    if len(held) > _HELD:
        rest = ", ".join(f"{entry.name}={entry.value}" for entry in sizes.held[_HELD:])
        held[_HELD:] = [f"fixed: {rest} (why: README.md)"]
    rates, starts = (
        ", ".join(f"{name} {here} → {there}" for name, here, there in numbers)
        for numbers in (sizes.rates, sizes.starts)
    )
    lengths = ", ".join(
        f"{name} {here} → {', '.join(map(str, others))}" for name, here, others in sizes.lengths
    )
    first = f"proven, all changed at once: {proven}" if proven else "not proven"
    why = f": {sizes.error}" if sizes.error else ""
    followed = [f"proven in training: {rates}"] if rates else []
    followed += [f"proven by initial values: {starts}"] if starts else []
    followed += [f"proven with other numbers of entries: {lengths}"] if lengths else []
    return (f"{first}{why}", *followed, *held)


def verdict(ported: Ported) -> str:
    """Return the verdict in a few words."""
    if ported.port.missing:
        return "ported with gaps"
    if not ported.cases:
        return "ported, not proven"
    return "ported" if ported.matches else f"ported; {_agreement(ported)}"


def _agreement(ported: Ported) -> str:
    """Say what of a port agrees with the original, and what does not."""
    count = len(ported.cases)
    failing = [case.name for case in ported.cases if not case.matches]
    others = [entry.setting for entry in ported.numerics if not entry.matches]
    if ported.initialization is not None and not ported.initialization.matches:
        others.append("initialization")
    if ported.cached is not None and not ported.cached.matches:
        others.append(ported.cached.name)
    others += [f"mesh {run.mesh}" for run in ported.meshes if not run.matches]
    agree = f"{count - len(failing)} of {many(count, 'comparison')} in float32 agree"
    return f"{agree}; different: {'; '.join([*failing, *others])}"


def missing_table(missing: Sequence[Any]) -> Table:
    """Return the operators without a lowering: why, and what needs them."""
    from rich.text import Text

    table = plain_table("operator", "why", "module", "source")
    for entry in missing:
        table.add_row(*(Text(text) for text in (entry.op, entry.reason, entry.path, entry.line)))
    return table


def _cases(cases: Sequence[ProofCase]) -> Table:
    from rich.text import Text

    from migrate.port.readme import layers_text, worst_text

    table = plain_table("compared", "inputs", "outputs", "layers", "verdict")
    for case in cases:
        row = (case.name, case.inputs, worst_text(case), layers_text(case), case.verdict)
        table.add_row(*(Text(text) for text in row))
    return table


def _numerics(numerics: Sequence[Numerics]) -> Table:
    from rich.text import Text

    from migrate.port.readme import error_text

    table = plain_table("weights and computation", "port", "original", "verdict")
    for entry in numerics:
        row = (
            entry.setting,
            error_text(entry.port, entry),
            error_text(entry.original, entry),
            entry.verdict,
        )
        table.add_row(*(Text(text) for text in row))
    return table


def _meshes(runs: Sequence[MeshRun]) -> Table:
    from rich.text import Text

    from migrate.port.mesh.page import bytes_text, exchanges_text, part_text

    table = plain_table("mesh", "verdict", "of allowed error", "exchanges", "weights on a device")
    for run in runs:
        row = (run.mesh, run.verdict, part_text(run), exchanges_text(run), bytes_text(run))
        table.add_row(*(Text(text) for text in row))
    return table


def _start(ported: Ported) -> list[str]:
    """Return lines that compare initialization with the original."""
    start = ported.initialization
    otherwise = ported.port.otherwise if start is None else start.otherwise
    said = [f"  initialized differently: {key}: {why}" for key, why in otherwise.items()]
    if start is None:
        return said
    if start.error:
        return ["", f"initialization: not compared: {start.error}", *said]
    there = start.there or {}
    count = len(start.otherwise) + len(start.differs) + len(there)
    verdict = "matches" if start.matches else f"{count} differ{'s' * (count == 1)}"
    rows = [f"  differs: {path}: {text}" for path, text in start.differs.items()]
    rows += [f"  differs at the second size: {path}: {text}" for path, text in there.items()]
    return ["", f"initialization of {many(start.arrays, 'Flax array')}: {verdict}", *said, *rows]


def _parting(cases: Sequence[ProofCase]) -> list[str]:
    """The first case that speaks against the port: the first module that parts, and why."""
    case = next((entry for entry in cases if not entry.matches), None)
    if case is None:
        return []
    if case.parity is None:
        return ["", f"{case.name}: {case.error}"]
    said = ["", f"{case.name}: {case.sentence}"]
    if case.first is not None:
        called = "" if case.first.b is None else case.first.b.called  # nothing calls the model
        port = f" (called at {called})" if called else ""
        said.append(f"the first module that differs: {case.first.name or 'the model'}{port}")
    return [*said, *(f"cause: {entry.text}; {entry.evidence}" for entry in case.parity.causes)]


def port_as_json(ported: Ported) -> dict[str, Any]:
    """Return all of it as plain values."""
    port = ported.port
    return {
        "format": FORMAT,
        "matches": ported.matches,
        "verdict": verdict(ported),
        "folder": str(ported.folder),
        "files": list(ported.files),
        "target": ported.target,
        "model": port.model_class,
        "config": port.config_class,
        "inputs": [
            {"name": entry.name, "dtype": entry.dtype, "shape": list(entry.shape)}
            for entry in port.inputs
        ],
        "weights": ported.weights,
        "free": list(port.free),
        "baked": list(port.baked),
        "notes": [*port.notes, *ported.notes],
        "sizes": _sizes_as_json(ported),
        "missing": _missing(port.missing),
        "lost": list(ported.lost),
        "proof": [_case(case) for case in ported.cases],
        "bfloat16": [_numbers(entry) for entry in ported.numerics],
        "initialization": _initialization(ported),
        "cached": _cached(ported),
        "meshes": [_mesh(run) for run in ported.meshes],
    }


def _mesh(run: MeshRun) -> dict[str, Any]:
    return {
        "mesh": run.mesh,
        "matches": run.matches,
        "verdict": run.verdict,
        "output": finite(run.output),
        "gradient": finite(run.gradient),
        "collectives": dict(run.collectives),
        "weights_on_a_device": run.bytes,
    }


def _numbers(entry: Numerics) -> dict[str, Any]:
    return {
        "setting": entry.setting,
        "matches": entry.matches,
        "port": finite(entry.port),
        "original": finite(entry.original),
        "verdict": entry.verdict,
        "details": list(entry.details),
    }


def _sizes_as_json(ported: Ported) -> dict[str, Any] | None:
    sizes = ported.sizes
    if sizes is None:
        return None
    return {
        "changed": [
            {"name": name, "here": plain_value(here), "there": plain_value(there)}
            for name, here, there in sizes.changed
        ],
        "held": [
            {"name": entry.name, "value": plain_value(entry.value), "why": entry.why}
            for entry in sizes.held
        ],
        "rates": [
            {"name": name, "here": here, "there": there} for name, here, there in sizes.rates
        ],
        "starts": [
            {"name": name, "here": here, "there": there} for name, here, there in sizes.starts
        ],
        "lengths": [
            {
                "name": name,
                "here": plain_value(here),
                "there": [plain_value(other) for other in others],
            }
            for name, here, others in sizes.lengths
        ],
        "unread": [
            {"name": name, "value": plain_value(value), "why": why}
            for name, value, why in sizes.unread
        ],
        "axes": [
            {"input": name, "axis": axis, "size": size} for (name, axis), size in sizes.axes.items()
        ],
        "bounds": [entry.text for entry in ported.port.bounds],
        "relative_l2": finite(sizes.distance),
        "error": sizes.error,
    }


def _initialization(ported: Ported) -> dict[str, Any] | None:
    start = ported.initialization
    if start is None:
        return None
    return {
        "matches": start.matches,
        "arrays": start.arrays,
        "builds": start.builds,
        "otherwise": dict(start.otherwise),
        "differs": dict(start.differs),
        "differs_at_second_size": None if start.there is None else dict(start.there),
        "error": start.error,
    }


def _cached(ported: Ported) -> dict[str, Any] | None:
    cached = ported.cached
    if cached is None:
        return None
    return {
        "name": cached.name,
        "matches": cached.matches,
        "relative_l2": None if cached.error else finite(cached.distance),
        "error": cached.error,
    }


def missing_as_json(error: MissingOperatorsError) -> dict[str, Any]:
    """Return the operators for which nothing was written."""
    return {"format": FORMAT, "matches": False, "missing": _missing(error.missing)}


def _missing(missing: Sequence[Any]) -> list[dict[str, str]]:
    return [
        {"op": entry.op, "reason": entry.reason, "module": entry.path, "line": entry.line}
        for entry in missing
    ]


def _gradient(case: ProofCase) -> dict[str, Any] | None:
    if case.worst_gradient is None:
        return None
    name, distance = case.worst_gradient
    return {"name": name, "relative_l2": finite(distance)}


def _case(case: ProofCase) -> dict[str, Any]:
    return {
        "name": case.name,
        "inputs": case.inputs,
        "matches": case.matches,
        "verdict": None if case.parity is None else case.verdict,
        "relative_l2": finite(case.worst),
        "worst_gradient": _gradient(case),
        "first": None if case.first is None else case.first.name,
        "error": case.error,
        "skipped": case.skipped,
    }

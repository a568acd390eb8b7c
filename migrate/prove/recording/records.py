"""Record of a rank of a run: file format and reading.

A folder holds for each rank:

- `rank{R}.pid{P}.jsonl`: a header line, then one line a step;
- `rank{R}.optimizer{O}.step{S}.safetensors`: parameters after some of the steps;
- for the original also `….elements.safetensors`: the elements that rounding can move;
- `rank{R}.final.safetensors`: parameters and buffers at the end;
- `rank{R}.end.json`: the printed lines.

No torch is imported here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from migrate.prove.errors import RecordingError
from migrate.prove.recording import details
from migrate.prove.recording.details import Details

# The environment variable that tells the processes of a run where to record.
RECORD_DIRECTORY = "MIGRATE_RECORD_DIR"

# Steps after which the parameters are kept: keeping them at each step would cost 12 to 15 % of the run.
SNAPSHOT_STEPS = (1, 2, 5, 10, 20, 50)


@dataclass(frozen=True)
class Header:
    """Facts about a rank at its first step.

    Attributes:
        rank: the global rank.
        world_size: the number of ranks.
        parameters: name → shape, for every root module.
    """

    rank: int
    world_size: int
    parameters: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class StepRecord:
    """Record of an optimizer step of a rank.

    Attributes:
        step: number from 1, for each optimizer by itself.
        optimizer: number in the order of the first steps, from 0.
        losses: loss of each backward pass since the previous step, unscaled.
        gradient_norm: global L2 norm of the gradients that the step used; None without gradients.
        clipped_from: results of `clip_grad_norm_`: the norms before clipping.
        parameters: number of parameters of the optimizer.
        with_gradient: number of them with a gradient.
        in_modules: number of them that are parameters of a module.
        learning_rates: learning rate of each parameter group.
        checksum: sum of squares, in float32, of the optimizer's parameters after the step. Ranks with the
            same parameters run the same program and get the same number.
        dropout: the largest probability of an active dropout so far; 0.0 for none.
        switched_off: the largest probability of a dropout that the proof switched off so far.
        made_bfloat16: whether the proof has changed an autocast to float16 into bfloat16 so far.
        details: details that explain a difference.
        moves: for each parameter, the movement by rounding in Adam's first step, as a fraction of its norm,
            if this is such a step (`record.noise.adam`).
        in_graph: number of the optimizer's steps since a sync on XLA last ended one; 0 elsewhere.
        norms: in the original, the L2 norms of the gradients, one for each part of each parameter
            (`recording.weights.parts`): their squares add up to that of `gradient_norm`.
        seeds: seed of the device for each line of the script that drew on it since the step before.
    """

    step: int
    optimizer: int
    losses: tuple[float, ...]
    gradient_norm: float | None
    clipped_from: tuple[float, ...]
    parameters: int
    with_gradient: int
    in_modules: int
    learning_rates: tuple[float, ...]
    checksum: tuple[float, ...]
    dropout: float
    switched_off: float = 0.0
    made_bfloat16: bool = False
    details: Details = field(default_factory=Details)
    moves: dict[str, float] = field(default_factory=dict)
    in_graph: int = 0
    norms: tuple[float, ...] = ()
    seeds: dict[str, str] = field(default_factory=dict)

    @property
    def loss(self) -> float | None:
        """Mean of the losses of the step; None if no backward pass was seen."""
        return sum(self.losses) / len(self.losses) if self.losses else None


@dataclass(frozen=True)
class RankRecord:
    """Record of a rank.

    Attributes:
        header: its place among the ranks.
        steps: in the order in which they ran.
        snapshots: the file of the parameters after a step, by (optimizer, step).
        final: the file of the parameters and buffers at the end.
        elements: in the original, the file of the elements that rounding can move, by (optimizer, step).
        final_elements: the same at the end.
        unchanged: parameters and buffers that are unchanged since the first step.
        optimized: parameters that an optimizer holds.
        printed: the lines with a digit that the rank wrote to stdout and stderr.
    """

    header: Header
    steps: tuple[StepRecord, ...]
    snapshots: dict[tuple[int, int], Path] = field(default_factory=dict)
    final: Path | None = None
    unchanged: frozenset[str] = frozenset()
    optimized: frozenset[str] = frozenset()
    printed: tuple[str, ...] = ()
    elements: dict[tuple[int, int], Path] = field(default_factory=dict)
    final_elements: Path | None = None


def line(record: Header | StepRecord) -> str:
    """Serialize a record as one line of the file."""
    return json.dumps(asdict(record)) + "\n"


def snapshot_path(folder: Path, rank: int, optimizer: int, step: int) -> Path:
    """Path of a rank's parameters after a step."""
    return folder / f"rank{rank}.optimizer{optimizer}.step{step}.safetensors"


def final_path(folder: Path, rank: int) -> Path:
    """Path of a rank's parameters and buffers at its end."""
    return folder / f"rank{rank}.final.safetensors"


def elements_path(folder: Path, rank: int, optimizer: int, step: int) -> Path:
    """Path of the file on a rank's elements after a step."""
    return folder / f"rank{rank}.optimizer{optimizer}.step{step}.elements.safetensors"


def final_elements_path(folder: Path, rank: int) -> Path:
    """Path of the file on a rank's elements at its end."""
    return folder / f"rank{rank}.final.elements.safetensors"


def end_path(folder: Path, rank: int) -> Path:
    """Path of the facts known only at a rank's end: fields of a `RankRecord`, as JSON."""
    return folder / f"rank{rank}.end.json"


def read(folder: Path) -> dict[int, RankRecord]:
    """Read all ranks that recorded a step, by rank; empty if none did.

    Raises:
        RecordingError: two processes claim one rank, or a file is cut short.
    """
    ranks: dict[int, RankRecord] = {}
    for path in sorted(folder.glob("rank*.pid*.jsonl")):
        record = _read_rank(folder, path)
        if record.header.rank in ranks:
            raise RecordingError(
                f"two processes of the run have rank {record.header.rank}",
                "let each process join the group before its first step",
            )
        ranks[record.header.rank] = record
    return dict(sorted(ranks.items()))


def _read_rank(folder: Path, path: Path) -> RankRecord:
    try:
        end: dict[str, list[str]] = {}
        first, *rest = [json.loads(text) for text in path.read_text().splitlines()]
        parameters = {name: tuple(shape) for name, shape in first["parameters"].items()}
        header = Header(first["rank"], first["world_size"], parameters)
        steps = tuple(_step(values) for values in rest)
        if (end_file := end_path(folder, header.rank)).exists():
            end = json.loads(end_file.read_text())
    except (ValueError, KeyError, TypeError) as error:
        raise RecordingError(
            f"the recording {path.name} is cut short ({error})",
            "let every process return normally, not by os._exit or a signal",
        ) from error
    rank = header.rank
    snapshots, elements = (
        {
            (step.optimizer, step.step): kept
            for step in steps
            if (kept := path_of(folder, rank, step.optimizer, step.step)).exists()
        }
        for path_of in (snapshot_path, elements_path)
    )
    final, last = final_path(folder, rank), final_elements_path(folder, rank)
    return RankRecord(
        header,
        steps,
        snapshots,
        final if final.exists() else None,
        unchanged=frozenset(end.get("unchanged", ())),
        optimized=frozenset(end.get("optimized", ())),
        printed=tuple(end.get("printed", ())),
        elements=elements,
        final_elements=last if last.exists() else None,
    )


def _step(values: dict[str, Any]) -> StepRecord:
    more = details.from_json(values.pop("details", {}))
    lists: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return StepRecord(**lists, details=more)

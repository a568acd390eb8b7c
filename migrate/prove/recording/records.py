"""What one rank of a run recorded: its file format, and how it is read back.

A folder holds, for each rank, `rank{R}.pid{P}.jsonl` (a header line, then one line a step),
`rank{R}.optimizer{O}.step{S}.safetensors` (parameters after some of the steps), of the original also
`….elements.safetensors` (which of their elements rounding can move),
`rank{R}.final.safetensors` (parameters and buffers at the end) and `rank{R}.end.json` (what was printed).
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

# Steps after which the parameters are kept: each step would cost 12 to 15 % of the run.
SNAPSHOT_STEPS = (1, 2, 5, 10, 20, 50)


@dataclass(frozen=True)
class Header:
    """What is known of a rank at its first step.

    Attributes:
        rank: the global rank.
        world_size: the number of ranks.
        parameters: of every root module: name, shape.
    """

    rank: int
    world_size: int
    parameters: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step of one rank.

    Attributes:
        step: from 1, for each optimizer by itself.
        optimizer: in the order of the first steps, from 0.
        losses: of each backward pass since the previous step, unscaled.
        gradient_norm: global L2 norm of the gradients that the step used; None without gradients.
        clipped_from: what `clip_grad_norm_` returned: the norms before clipping.
        parameters: how many the optimizer holds.
        with_gradient: how many of them have a gradient.
        in_modules: how many of them are parameters of a module.
        learning_rates: of each parameter group.
        checksum: sum of squares, in float32, of the optimizer's parameters after the step. Ranks with
            the same parameters run the same program and get the same number.
        dropout: the largest probability of an active dropout so far; 0.0 for none.
        switched_off: the largest probability of a dropout that the proof switched off so far.
        made_bfloat16: whether the proof has made an autocast to float16 one to bfloat16 so far.
        details: what explains a difference.
        moves: of each parameter, by how much of its norm rounding moves Adam's first step, where this is
            one (`record.noise.adam`).
        in_graph: which step of its optimizer it is since a sync on XLA last ended one; 0 elsewhere.
        norms: of the original, the L2 norms of the gradients, one for each part of each parameter
            (`recording.weights.parts`): their squares add up to that of `gradient_norm`.
        seeds: of the device, by each line of the script that drew on it since the step before.
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
        """The mean of the losses of the step; None if no backward pass was seen."""
        return sum(self.losses) / len(self.losses) if self.losses else None


@dataclass(frozen=True)
class RankRecord:
    """All that one rank recorded.

    Attributes:
        header: its place among the ranks.
        steps: in the order in which they ran.
        snapshots: the file of the parameters after a step, by (optimizer, step).
        final: the file of the parameters and buffers at the end.
        elements: of the original, the file that tells which elements rounding can move, by (optimizer, step).
        final_elements: the same of the end.
        unchanged: parameters and buffers that are what they were at the first step.
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
    """The record as one line of the file."""
    return json.dumps(asdict(record)) + "\n"


def snapshot_path(folder: Path, rank: int, optimizer: int, step: int) -> Path:
    """Where a rank keeps its parameters after a step."""
    return folder / f"rank{rank}.optimizer{optimizer}.step{step}.safetensors"


def final_path(folder: Path, rank: int) -> Path:
    """Where a rank keeps its parameters and buffers at its end."""
    return folder / f"rank{rank}.final.safetensors"


def elements_path(folder: Path, rank: int, optimizer: int, step: int) -> Path:
    """Where a rank keeps what is known of the elements of its parameters after a step."""
    return folder / f"rank{rank}.optimizer{optimizer}.step{step}.elements.safetensors"


def final_elements_path(folder: Path, rank: int) -> Path:
    """Where a rank keeps what is known of the elements of its parameters at its end."""
    return folder / f"rank{rank}.final.elements.safetensors"


def end_path(folder: Path, rank: int) -> Path:
    """Where a rank keeps what is known only at its end: the fields of a `RankRecord`, as JSON."""
    return folder / f"rank{rank}.end.json"


def read(folder: Path) -> dict[int, RankRecord]:
    """All ranks that recorded a step, by rank; empty if none did.

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

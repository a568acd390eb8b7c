"""A short run of the rewritten project on simulated replicas, in a mirror of its folders."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from migrate.assess.facts import ObservedRun
from migrate.observe.graphs import with_places
from migrate.observe.records import read_lines
from migrate.observe.report import (
    WARM_UP,
    Observed,
    ObservedLine,
    observed,
    training_intervals,
)
from migrate.place import Place
from migrate.prove.errors import HangError, RunTimeoutError
from migrate.prove.failure import last_error
from migrate.prove.run import run_script
from migrate.rewrite.original import at_original
from migrate.rewrite.results import FolderRewrite

# Training steps: enough to see whether the later ones still compile something.
STEPS = 12
# Syncs of a replica after which the run ends, although evaluations and saves left too few training steps.
_SYNCS = 5 * STEPS
# In every second step at least.
_OFTEN = 0.5


@dataclass(frozen=True)
class Ready:
    """A project rewritten, as far as it lies in the mirror.

    Attributes:
        place: the mirror.
        script: the script of the user; `place.inside` says where it runs.
        original: maps a location in the mirror to the user's own file.
        beyond: rewritten files that the mirror does not reach: there they are as they were.
        changed: the rewritten files in the mirror.
    """

    place: Place
    script: Path
    original: Callable[[str], str]
    beyond: tuple[str, ...]
    changed: tuple[Path, ...] = ()

    def original_of_base(self, place: str) -> str:
        """Return the user's own place for "train.py:12" of a rewritten file.

        Where files share the name, only the name.
        """
        base, _, line = place.rpartition(":")
        named = [file for file in self.changed if file.name == base]
        if not named:
            return place
        own = self.original(f"{named[0]}:{line}")
        return f"{base}:{own.rpartition(':')[2]}" if len(named) == 1 else base


@contextmanager
def rewritten_project(done: FolderRewrite, script: Path) -> Iterator[Ready]:
    """Yield a mirror of the working directory and the script's folder, with the rewritten files in it.

    What the script writes there is gone afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-assess-") as folder:
        place = Place(Path(folder), script, Path.cwd())
        maps, beyond = [], []
        for file in done.changed:
            path = (done.folder / file.name).resolve()
            if file.name.suffix == ".py" and not place.owns(path):
                beyond.append(str(file.name))
            elif file.name.suffix == ".py":
                inside = place.inside(path)
                inside.write_bytes(file.after)
                maps.append((inside, at_original(path, inside)))

        def original(text: str) -> str:
            name = text.rpartition(":")[0]
            for inside, known in maps:
                if name == str(inside):
                    text = known(text)
            outside = place.text_outside(text)
            if not os.path.isabs(outside):
                return outside
            return min(os.path.relpath(outside), outside, key=len)

        yield Ready(place, script, original, tuple(beyond), tuple(inside for inside, _ in maps))


def short_run(ready: Ready, args: Sequence[str], replicas: int, timeout: float) -> ObservedRun:
    """Run the script until each replica has made `STEPS` training steps, it ends, or its time is over."""
    with tempfile.TemporaryDirectory(prefix="migrate-assess-") as name:
        folder = Path(name)
        try:
            result = run_script(
                ready.place.inside(ready.script),
                args,
                side="xla",
                replicas=replicas,
                observe_dir=folder,
                timeout=timeout,
                output="capture",
                place=ready.place,
                until=lambda: _enough(folder, replicas),
            )
        except HangError as error:
            return ObservedRun(error.what, failed=True)
        except RunTimeoutError:
            seen = observed(folder, stopped=True)
            late = f"it made no training step in {timeout:.0f} s (--run-timeout)"
            return (
                _observed_run(seen, ready, replicas, timeout) if seen.loops else ObservedRun(late)
            )
        seen = observed(folder, stopped=_enough(folder, replicas))
        if result.returncode:
            said = _in_user_words(ready, last_error(result.output) or "")
            said = said or f"exit code {result.returncode}"
            return ObservedRun(f"it fails{_where(ready, result.output)}: {said}", failed=True)
    if not seen.loops:
        return ObservedRun("it ends without a training step on the device", failed=True)
    return _observed_run(seen, ready, replicas, result.seconds)


def _in_user_words(ready: Ready, said: str) -> str:
    """Return the message of an error with lines of the user's files, and without the names of our classes."""
    said = re.sub(r"\bshims\.errors\.\w+: |\bReplicasDisagreeError: ", "", said)

    def own(match: re.Match[str]) -> str:
        file, line = Path(match[1]), match[2]
        if not ready.place.owns(file):
            return match[0]
        return ready.original(f"{ready.place.inside(file)}:{line}")

    return re.sub(r"(/[^\s:]+\.py):(\d+)", own, said).rstrip(": ")


def _where(ready: Ready, output: str) -> str:
    """The last line of the user's that the traceback names, as " at train.py:93", or "" if there is none."""
    # What was said is of the user's folders: see `Place.text_outside`.
    named = re.findall(r'File "([^"]+)", line (\d+)', output)
    own = [
        ready.original(str(ready.place.inside(Path(file))) + f":{line}")
        for file, line in named
        if ready.place.owns(Path(file))
    ]
    return f" at {own[-1]}" if own else ""


def _enough(folder: Path, replicas: int) -> bool:
    files = list(folder.glob("*.jsonl"))
    if sum(path.read_bytes().count(b"\n") >= STEPS for path in files) < replicas:
        return False  # asked often: the lines are only read if there are enough of them
    steps = read_lines(folder)
    counts = Counter(step.rank for step in training_intervals(steps))
    syncs = Counter(step.rank for step in steps)
    return sum(counts[rank] >= STEPS or syncs[rank] >= _SYNCS for rank in syncs) >= replicas


def _observed_run(seen: Observed, ready: Ready, replicas: int, seconds: float) -> ObservedRun:
    """Return what the training steps show. An evaluation also compiles and reads values."""
    first = [step for step in seen.training if step.rank == seen.steps[0].rank]
    later = first[len(first) // 2 :]
    by_rank: dict[int, list[int]] = defaultdict(list)
    for step in seen.training:
        by_rank[step.rank].append(step.number)
    # Any training compiles in its first steps: the optimizer creates its state there.
    steady = {(rank, number) for rank, of in by_rank.items() for number in of[WARM_UP:]}

    def line(at: ObservedLine | None) -> str:
        return ready.original(f"{os.path.abspath(at.file)}:{at.line}") if at else "no line known"

    def shown(change: str) -> str:
        return with_places(change, ready.original_of_base)

    return ObservedRun(
        replicas=replicas,
        seconds=seconds,
        steps=len(first),
        compiled=sum(step.compiles > 0 for step in first),
        late=sum(step.compiles > 0 for step in later) / len(later),
        changes=tuple(
            dict.fromkeys(
                f"{line(again.line)}: {', '.join(map(shown, again.changes[:2])) or 'another graph'}"
                for again in seen.recompilations
                if any((rank, again.step) in steady for rank in again.ranks)
            )
        ),
        reads=tuple(
            line(read.line) for read in seen.reads if read.trains and read.per_step >= _OFTEN
        ),
        on_cpu=tuple(
            f"{fallback.op} ({', '.join(map(line, fallback.lines)) or 'no line known'})"
            for fallback in seen.fallbacks
        ),
        parted=tuple(
            dict.fromkeys(
                line(at) for divergence in seen.divergences for at in divergence.lines if at
            )
        ),
        unended=tuple(line(unended.line) for unended in seen.unended),
    )

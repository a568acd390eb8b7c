"""Which loops of public projects train, and whether the rewrite leaves one of them in silence.

    python benchmarks/step_loops/run.py CHECKOUT... [--labels CSV]... [--no-rewrite]

A CHECKOUT is the folder of a whole project; it belongs to the labels of `OWNER/NAME` if it is called NAME or
OWNER+NAME. None of their code is in this repository. Two files of labels are here: `labels.csv`, with which
the detector was made, and `unseen.csv`, labeled by hand before the detector was run on those repositories.
Repositories with labels and without a checkout are named, and not counted.

How is counted. A label is a script and a loop that it trains with; a script with several loops has
several rows, a script without any an empty one (`straight`: one step without a loop, `none`: it does not
train). Found for a script is every step loop that running it may reach: the whole project is analyzed, and
calls are followed from the script's own code, through the local modules, functions that are passed on, and
instances that are called; what only runs as another script's main program is not reached, and neither is a
function of an imported module that nothing calls. Each (script, file, line) counts once: as a true positive
where it is a label, as a false positive where it is found and no label, as a false negative where it is a
label and not found. A checkout of another commit, or without a file of its labels, is an error, not a miss.

The baseline is lexical: for each `.backward(` the innermost `for` or `while` around it, in the files that
the script imports.

Then each project is rewritten, unless with --no-rewrite. A loop is left in silence if it is a step loop or a
label, is not proved to be on the CPU, had no step before, and neither the loop nor a function that it runs
got an edit or a finding of the rule `step`. Loops around a `.backward(` of which nothing is said either, but
which are no step loops, are listed too, to be looked at: they do not count.

Exit code 1 below a precision of 0.99 or a recall of 0.97 on either file of labels, or where a loop is left in
silence.
"""

from __future__ import annotations

import argparse
import ast
import csv
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from migrate.catalogue.words import STEPS
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.scopes import Function, Region, Scope
from migrate.model.objects.programs import programs_of
from migrate.model.project.project import Project
from migrate.rewrite.folder import files_of, rewrite_folder
from migrate.rewrite.results import FolderRewrite

HERE = Path(__file__).parent
PRECISION, RECALL = 0.99, 0.97
RULE = "step"

Place = tuple[str, int]  # file in the repository, line
Labels = Mapping[str, set[Place]]  # the loops of each script of a repository


@dataclass
class Score:
    """Counts over all scripts."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, script: str, found: set[Place], labeled: set[Place]) -> None:
        """Count one script."""
        self.right += len(found & labeled)
        self.wrong += len(found - labeled)
        self.missed += len(labeled - found)
        self.examples += [f"{script}: wrong {f}:{line}" for f, line in sorted(found - labeled)]
        self.examples += [f"{script}: missed {f}:{line}" for f, line in sorted(labeled - found)]

    @property
    def good(self) -> bool:
        """Whether precision and recall are what is required."""
        enough = self.right >= PRECISION * (self.right + self.wrong)
        return enough and self.right >= RECALL * (self.right + self.missed)

    def __str__(self) -> str:
        precision = self.right / max(1, self.right + self.wrong)
        recall = self.right / max(1, self.right + self.missed)
        counts = f"{self.right} right, {self.wrong} wrong, {self.missed} missed"
        return f"precision {precision:.3f}, recall {recall:.3f} ({counts})"


class Checkout:
    """A whole project, analyzed once.

    Args:
        folder: of the project.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        files = sorted(p for p in files_of(self.folder) if p.suffix == ".py" and p.is_file())
        self.project = Project.of_files(self.folder, files)
        self.analysis = Analysis(self.project)
        self.loops = dict(self._loops())

    @property
    def lines(self) -> int:
        """How many were read."""
        return sum(len(module.lines) for module in self.project.modules.values())

    def name(self, path: Path) -> str:
        """Return a file as labels name it."""
        return path.relative_to(self.folder).as_posix()

    def _loops(self) -> Iterator[tuple[Place, tuple[Scope, Region]]]:
        """Yield every loop of the project, with the function or module in which it stands."""
        for path, top in self.analysis.scopes.items():
            for scope in (top, *top.functions):
                roots = [scope.region, top.guard] if scope is top else [scope.region]
                for region in (r for root in roots for r in self.analysis.regions(root)):
                    if region.loop is not None:
                        yield (self.name(path), region.loop.lineno), (scope, region)

    @property
    def step_loops(self) -> set[Place]:
        """The loops that train."""
        return {
            place for place, (_, region) in self.loops.items() if region in self.analysis.step_loops
        }

    def reached(self, script: str) -> set[Place]:
        """Return the step loops that running `script` reaches."""
        reached = self.analysis.reached_from(self.folder / script)
        return {place for place in self.step_loops if self.loops[place][1] in reached}

    def around_backward(self, paths: set[Path]) -> set[Place]:
        """Return the innermost loops around each `.backward(` in some files."""
        found: set[Place] = set()
        for path in paths:
            tree = self.project.modules[path].tree
            above = {c: node for node in ast.walk(tree) for c in ast.iter_child_nodes(node)}
            for node in above:
                if isinstance(node, ast.Attribute) and node.attr == "backward":
                    around = above.get(node)
                    while around is not None and not isinstance(around, ast.For | ast.While):
                        stop = isinstance(around, ast.FunctionDef)
                        around = None if stop else above.get(around)
                    if around is not None:
                        found.add((self.name(path), around.lineno))
        return found

    def run_by(self, place: Place) -> Iterator[tuple[str, int, int]]:
        """Yield file, first and last line of a loop, and of all functions that it runs."""
        _, region = self.loops[place]
        assert region.loop is not None
        yield (place[0], region.loop.lineno, region.loop.end_lineno or 0)
        programs = programs_of(self.analysis)
        for scope in programs.run_from(programs.run_by(region)):
            if isinstance(scope, Function):
                yield (
                    self.name(scope.module.path),
                    scope.line,
                    self._ends[scope.module.path, scope.line],
                )

    @cached_property
    def _ends(self) -> dict[tuple[Path, int], int]:
        """The last line of each function and lambda, by its file and its line."""
        return {
            (path, node.lineno): node.end_lineno or 0
            for path, module in self.project.modules.items()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        }

    def had_step(self, place: Place) -> bool:
        """Whether a loop, or a function that it runs, says where a step ends on XLA."""
        words = {name.rpartition(".")[2] for name in STEPS}
        spans = self.run_by(place)
        sources = ("\n".join(self._lines(file)[a - 1 : b]) for file, a, b in spans)
        return any(f"{word}(" in source for source in sources for word in words)

    def _lines(self, name: str) -> list[str]:
        return self.project.modules[self.folder / name].lines


def read_labels(file: Path) -> dict[tuple[str, str], dict[str, set[Place]]]:
    """Return the labels of each (repository, commit): the loops of each script."""
    labels: dict[tuple[str, str], dict[str, set[Place]]] = defaultdict(lambda: defaultdict(set))
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            found = labels[row["repository"], row["commit"]][row["script"]]
            if row["loop_line"]:
                found.add((row["loop_file"], int(row["loop_line"])))
    return labels


def checked(folder: Path, commit: str, labels: Labels) -> None:
    """Raise SystemExit if a checkout is not what was labeled."""
    files = {*labels, *(file for loops in labels.values() for file, _ in loops)}
    if missing := sorted(file for file in files if not (folder / file).is_file()):
        raise SystemExit(f"{folder}: has no {missing[0]}; check out {commit}")
    if (folder / ".git").exists():
        git = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        head = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        if head != commit:
            raise SystemExit(f"{folder}: is at {head}; check out {commit}")


@dataclass(frozen=True)
class Silence:
    """What a rewrite does not say of the loops of a project.

    Attributes:
        loops: that train, and of which nothing is said.
        by_text: around a `.backward(`, of which nothing is said either, but which are no step loops.
        words: what is said of the others, counted.
    """

    loops: list[Place]
    by_text: list[Place]
    words: str


def in_silence(
    checkout: Checkout, done: FolderRewrite, labeled: Set[Place] = frozenset()
) -> Silence:
    """Return what the rewrite of a project does not say of its loops.

    Args:
        checkout: the project.
        done: its rewrite.
        labeled: loops that train, whatever is found.
    """
    said = {(f.name.as_posix(), n.line) for f in done.files for n in f.findings if n.rule == RULE}
    edited = {(f.name.as_posix(), n.line) for f in done.files for n in f.edits if n.rule == RULE}
    problems = {f.name.as_posix(): f.problem for f in done.files if f.problem}
    programs = programs_of(checkout.analysis)
    counts: dict[str, int] = defaultdict(int)
    silent, by_text = [], []
    trains = checkout.step_loops | labeled
    around = checkout.around_backward(set(checkout.project.modules))
    for place in sorted(trains | around):
        spans = list(checkout.run_by(place))
        if _any_in(edited, spans):
            counts["get a step"] += place in trains
        elif _any_in(said, spans):
            counts["are reported"] += place in trains
        elif place[0] in problems:
            counts["lie in files that are not rewritten"] += place in trains
        elif checkout.had_step(place):
            counts["had a step"] += place in trains
        elif place not in labeled and programs.on_accelerator(*checkout.loops[place]) is False:
            counts["are on the CPU"] += place in trains
        elif place in trains:
            silent.append(place)
        else:
            by_text.append(place)
    words = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    return Silence(silent, by_text, f"{len(trains)} loops train: {words or 'none'}")


def _any_in(places: set[Place], spans: list[tuple[str, int, int]]) -> bool:
    return any(f == file and a <= line <= b for file, line in places for f, a, b in spans)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", type=Path, nargs="+", metavar="CHECKOUT")
    parser.add_argument("--no-rewrite", action="store_true", help="the labels alone")
    parser.add_argument("--labels", type=Path, action="append", metavar="CSV")
    options = parser.parse_args()
    files: list[Path] = options.labels or [HERE / "labels.csv", HERE / "unseen.csv"]
    labels = {file: read_labels(file) for file in files}
    scores = {file: (Score(), Score()) for file in files}
    seen: set[str] = set()
    silent = 0
    for folder in options.checkouts:
        if not folder.is_dir():
            raise SystemExit(f"{folder}: no such folder")
        started = time.perf_counter()
        checkout = Checkout(folder)
        labeled: set[Place] = set()
        for file in files:
            for (repository, commit), scripts in labels[file].items():
                if folder.name not in (repository.replace("/", "+"), repository.split("/")[1]):
                    continue
                checked(folder, commit, scripts)
                seen.add(repository)
                for script, loops in scripts.items():
                    labeled |= loops
                    detector, baseline = scores[file]
                    detector.add(f"{repository} {script}", checkout.reached(script), loops)
                    imported = Project.of_script(folder / script, root=folder).modules
                    found = checkout.around_backward(set(imported) & set(checkout.project.modules))
                    baseline.add(f"{repository} {script}", found, loops)
        words = f"{len(checkout.step_loops | labeled)} loops train"
        if not options.no_rewrite:
            done = rewrite_folder(checkout.folder)
            for problem in done.problems:
                print(f"{folder.name} {problem.name}: {problem.problem}")
            left = in_silence(checkout, done, labeled)
            silent += len(left.loops)
            words = left.words
            for name, line in left.loops:
                print(f"{folder.name} {name}:{line}: nothing is said of this loop")
            for name, line in left.by_text:
                print(f"{folder.name} {name}:{line}: a backward pass, and nothing is said")
        seconds = time.perf_counter() - started
        print(f"{folder.name}: {checkout.lines} lines in {seconds:.0f} s; {words}", flush=True)
    for file in files:
        detector, baseline = scores[file]
        absent = sorted({repository for repository, _ in labels[file]} - seen)
        print()
        print("\n".join(detector.examples), end="\n" if detector.examples else "")
        print(f"{file.name}: {len(labels[file]) - len(absent)} repositories", end="")
        print(f"; not given: {', '.join(absent)}" if absent else "")
        print(f"by effects       {detector}")
        print(f"lexical baseline {baseline}")
    if not options.no_rewrite:
        print(f"\nin silence: {silent}")
    sys.exit(0 if silent == 0 and all(found.good for found, _ in scores.values()) else 1)


if __name__ == "__main__":
    main()

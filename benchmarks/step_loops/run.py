"""How many training loops of public scripts are found: precision, recall, and a baseline's beside them.

    python benchmarks/step_loops/run.py --repositories DIR [--labels CSV]

DIR holds checkouts named OWNER+NAME at the commits of the labels; none of their code is in this
repository. Two files of labels are here: `labels.csv`, with which the detector was made, and
`unseen.csv`, labelled by hand before the detector was run on those repositories.

How is counted. A label is a script and a loop that it trains with; a script with several loops has
several rows, a script without any an empty one (`straight`: one step without a loop, `none`: it does not
train). Found for a script is every step loop that running it may reach: calls are followed from the
script's own code, through the local modules, functions that are passed on, and instances that are called;
what only runs as another script's main program is not reached, and neither is a function of an imported
module that nothing calls. Each pair (script, file, line) counts once: as a true positive where it is a
label, as a false positive where it is found and no label, as a false negative where it is a label and not
found. A file that is missing from the checkout is an error, not a miss.

The baseline is lexical: for each `.backward(` the innermost `for` or `while` around it, in the files that
the script imports.
"""

from __future__ import annotations

import argparse
import ast
import csv
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from migrate.reading.calls.analysis import Analysis
from migrate.reading.project.project import Project

HERE = Path(__file__).parent
Loops = set[tuple[str, int]]  # file in the repository, line


@dataclass
class Score:
    """Counts over all scripts."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, script: str, found: Loops, labelled: Loops) -> None:
        """Count one script."""
        self.right += len(found & labelled)
        self.wrong += len(found - labelled)
        self.missed += len(labelled - found)
        self.examples += [f"{script}: wrong {f}:{line}" for f, line in sorted(found - labelled)]
        self.examples += [f"{script}: missed {f}:{line}" for f, line in sorted(labelled - found)]

    def __str__(self) -> str:
        precision = self.right / max(1, self.right + self.wrong)
        recall = self.right / max(1, self.right + self.missed)
        counts = f"{self.right} right, {self.wrong} wrong, {self.missed} missed"
        return f"precision {precision:.3f}, recall {recall:.3f} ({counts})"


def found_by_effects(project: Project, script: Path) -> Loops:
    """Return the step loops that running `script` reaches."""
    analysis = Analysis(project)
    reached = analysis.reached_from(script)
    found: Loops = set()
    for path, scope in analysis.scopes.items():
        roots = (scope.region, scope.guard, *(function.region for function in scope.functions))
        regions = {region for root in roots for region in analysis.regions(root)}
        for region in regions & reached & analysis.step_loops:
            assert region.loop is not None
            found.add((_name(path, project), region.loop.lineno))
    return found


def found_by_text(project: Project) -> Loops:
    """Return the innermost loops around each `.backward(` in the files of `project`."""
    found: Loops = set()
    for path, module in project.modules.items():
        above = {
            child: node for node in ast.walk(module.tree) for child in ast.iter_child_nodes(node)
        }
        for node in above:
            if isinstance(node, ast.Attribute) and node.attr == "backward":
                around = above.get(node)
                while around is not None and not isinstance(around, ast.For | ast.While):
                    stop = isinstance(around, ast.FunctionDef)
                    around = None if stop else above.get(around)
                if around is not None:
                    found.add((_name(path, project), around.lineno))
    return found


def _name(path: Path, project: Project) -> str:
    assert project.root is not None
    return path.relative_to(project.root).as_posix()


def read_labels(file: Path) -> dict[tuple[str, str], Loops]:
    """Return the labelled loops of each (repository, script)."""
    labels: dict[tuple[str, str], Loops] = defaultdict(set)
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            found = labels[row["repository"], row["script"]]
            if row["loop_line"]:
                found.add((row["loop_file"], int(row["loop_line"])))
    return labels


def measure(labels: dict[tuple[str, str], Loops], repositories: Path) -> tuple[Score, Score, int]:
    """Return the scores of the detector and of the baseline, and the lines that were read."""
    detector, baseline, lines = Score(), Score(), 0
    for (repository, name), labelled in labels.items():
        root = (repositories / repository.replace("/", "+")).resolve()
        if missing := [
            file for file in {name, *(f for f, _ in labelled)} if not (root / file).is_file()
        ]:
            raise SystemExit(f"{root}: has no {missing[0]}; check out the commit of the label")
        project = Project.of_script(root / name, root=root)
        lines += sum(len(module.lines) for module in project.modules.values())
        detector.add(f"{repository} {name}", found_by_effects(project, root / name), labelled)
        baseline.add(f"{repository} {name}", found_by_text(project), labelled)
    return detector, baseline, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repositories", type=Path, required=True, metavar="DIR")
    parser.add_argument("--labels", type=Path, default=HERE / "labels.csv", metavar="CSV")
    options = parser.parse_args()
    labels = read_labels(options.labels)
    started = time.perf_counter()
    detector, baseline, lines = measure(labels, options.repositories)
    seconds = time.perf_counter() - started
    for example in detector.examples:
        print(example)
    loops = sum(len(found) for found in labels.values())
    print(
        f"{options.labels.name}: {len(labels)} scripts, {loops} loops; {lines} lines in {seconds:.1f} s"
    )
    print(f"by effects       {detector}")
    print(f"lexical baseline {baseline}")
    required = options.labels.resolve() == (HERE / "labels.csv").resolve()
    good = detector.right >= 0.97 * (detector.right + detector.wrong)
    good &= detector.right >= 0.95 * (detector.right + detector.missed)
    sys.exit(0 if good or not required else 1)


if __name__ == "__main__":
    main()

"""Files whose training a framework runs, launches and moves itself: Accelerate, Fabric, Lightning."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from migrate.catalogue.libraries import LED_CLASSES, RUNNERS
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kinds import External
from migrate.model.calls.scopes import Class, ModuleScope

SIGNS = re.compile(rb"accelerate|lightning")
# Names of classes that run a Lightning training, also in an annotation of a configured object.
RUNNER_NAMES = re.compile(rb"\b(Trainer|LightningCLI|Fabric)\b")
TEST = re.compile(r"(^|/)(tests?/|test_\w*\.py$|conftest\.py$|\w+_test\.py$)")


@lru_cache(maxsize=2)
def led_of(analysis: Analysis) -> Mapping[Path, str]:
    """Return the files that a framework runs: those that call it, and those that only such files use.

    Returns:
        The value is the file that calls the framework, as it is named in the project; empty if the file calls
            it itself.
    """
    own = {path for path, top in analysis.scopes.items() if _calls_one(analysis, top)}
    own |= _with_classes(analysis, bool(own))
    if not own:
        return {}
    importers: dict[Path, set[Path]] = defaultdict(set)
    for path, module in analysis.project.modules.items():
        for imported in analysis.project.imports(module):
            importers[imported].add(path)
    led = dict.fromkeys(own, "")
    for path in analysis.scopes.keys() - own:
        user = _user(path, own, importers, analysis)
        if user is not None:
            led[path] = _name(user, analysis)
    return led


def _user(
    path: Path, own: set[Path], importers: Mapping[Path, set[Path]], analysis: Analysis
) -> Path | None:
    """Return a file that calls a framework and uses `path`; None if a program without one uses it too."""
    users: set[Path] = set()
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        scope = waiting.pop()
        above = {p for p in importers.get(scope, ()) if not TEST.search(_name(p, analysis))}
        is_package = scope.name == "__init__.py"
        if _is_program(analysis.scopes.get(scope)) or not (above or is_package):
            return None
        users |= above & own
        waiting += above - own - seen
        seen |= above
    return min(users, default=None)


def _is_program(top: ModuleScope | None) -> bool:
    return top is None or bool(top.guard.calls or top.guard.inner)


def _name(path: Path, analysis: Analysis) -> str:
    root = analysis.project.root
    if root is None or root not in path.parents:
        return path.name
    return path.relative_to(root).as_posix()


def _with_classes(analysis: Analysis, is_run: bool) -> set[Path]:
    """Return the files with a class that a framework trains.

    If nothing in the project runs the framework, a loop of the project that imports the class may train it.
    The class is then used as a module of torch.

    Args:
        analysis: the project.
        is_run: whether a file is known to make the object that runs the training.
    """
    files = {path for path, top in analysis.scopes.items() if _led_classes(analysis, top)}
    data = [top.module.data for top in analysis.scopes.values()] if files else []
    if is_run or any(SIGNS.search(text) and RUNNER_NAMES.search(text) for text in data):
        return files
    return {path for path in files if not _is_trained_by_hand(path, analysis)}


def _is_trained_by_hand(path: Path, analysis: Analysis) -> bool:
    """Whether a file that imports `path`, or the file itself outside of such a class, has a training loop."""
    for loop_file, top in analysis.scopes.items():
        led = set(_led_classes(analysis, top))
        roots = [*top.roots, *(f.region for f in top.functions if f.owner not in led)]
        loops = (region for root in roots for region in analysis.regions(root))
        trains = any(region in analysis.step_loops for region in loops)
        if trains and path in _imported(loop_file, analysis):
            return True
    return False


def _imported(start: Path, analysis: Analysis) -> set[Path]:
    """Return `start` and the files of the project that it imports, directly or indirectly."""
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        module = analysis.project.modules.get(path)
        if path not in seen and module is not None:
            waiting += analysis.project.imports(module)
        seen.add(path)
    return seen


def _led_classes(analysis: Analysis, top: ModuleScope) -> list[Class]:
    if SIGNS.search(top.module.data) is None:
        return []
    bases = analysis.evaluator.external_bases
    return [class_ for class_ in top.classes if not LED_CLASSES.isdisjoint(bases(class_))]


def _calls_one(analysis: Analysis, top: ModuleScope) -> bool:
    """Whether a file makes an object that runs the training."""
    if SIGNS.search(top.module.data) is None:
        return False
    evaluator = analysis.evaluator
    for root in top.all_roots:
        for region in analysis.regions(root):
            for call, scope in region.calls:
                values = evaluator.values(call.func, scope)
                if any(isinstance(v, External) and _makes_runner(v.name) for v in values):
                    return True
    return False


def _makes_runner(name: str) -> bool:
    """Whether calling `name` makes an object that runs training: `Trainer`, `Trainer.from_argparse_args`."""
    owner, _, method = name.rpartition(".")
    return name in RUNNERS or (owner in RUNNERS and method.startswith("from_"))

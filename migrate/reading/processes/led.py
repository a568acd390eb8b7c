"""Files whose training a framework runs that launches and moves by itself: Accelerate, Fabric, Lightning."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from migrate.reading.calls.analysis import Analysis
from migrate.reading.calls.kinds import External
from migrate.reading.calls.scopes import ModuleScope
from migrate.reading.catalogue.libraries import LED_CLASSES, RUNNERS

SIGNS = re.compile(rb"accelerate|lightning")
TEST = re.compile(r"(^|/)(tests?/|test_\w*\.py$|conftest\.py$|\w+_test\.py$)")


@lru_cache(maxsize=2)
def led_of(analysis: Analysis) -> Mapping[Path, str]:
    """Return the files that a framework runs: those that call it, and those that only such files use.

    Returns:
        For each of them the file that calls the framework, as it is named in the project; empty where it
        does so itself.
    """
    own = {path for path, top in analysis.scopes.items() if _calls_one(analysis, top)}
    if not own:
        return {}
    importers: dict[Path, set[Path]] = defaultdict(set)
    for path, module in analysis.project.modules.items():
        for imported in analysis.project.imports(module):
            importers[imported].add(path)
    found = dict.fromkeys(own, "")
    for path in analysis.scopes.keys() - own:
        user = _user(path, own, importers, analysis)
        if user is not None:
            found[path] = _name(user, analysis)
    return found


def _user(
    path: Path, own: set[Path], importers: Mapping[Path, set[Path]], analysis: Analysis
) -> Path | None:
    """Return a file that calls a framework and uses `path`; None where a program without one uses it too."""
    users: set[Path] = set()
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        one = waiting.pop()
        above = {p for p in importers.get(one, ()) if not TEST.search(_name(p, analysis))}
        is_package = one.name == "__init__.py"
        if _is_program(analysis.scopes.get(one)) or not (above or is_package):
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


def _calls_one(analysis: Analysis, top: ModuleScope) -> bool:
    """Whether a file makes what runs the training, or a class that it trains."""
    if SIGNS.search(top.module.data) is None:
        return False
    evaluator = analysis.evaluator
    for root in top.all_roots:
        for region in analysis.regions(root):
            for call, scope in region.calls:
                values = evaluator.values(call.func, scope)
                if any(isinstance(v, External) and v.name in RUNNERS for v in values):
                    return True
    return any(not LED_CLASSES.isdisjoint(evaluator.external_bases(made)) for made in top.classes)

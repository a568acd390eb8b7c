"""Variables of torchrun (RANK, WORLD_SIZE) that the launching scripts of a project set in each replica."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from migrate.catalogue.words import RANKS
from migrate.model.calls.analysis import Analysis
from migrate.model.project.project import SourceModule

# A file without any of these words launches no replicas of torch_xla.
LAUNCH_WORDS = (b"torch_xla.launch", b"xla_multiprocessing")


def ranks_set_for(analysis: Analysis, path: Path) -> frozenset[str]:
    """Return the variables that all scripts set which import the file and launch replicas of torch_xla."""
    setters = _setters(analysis)
    if not setters:
        return frozenset()
    importers, waiting = set[Path](), [path]
    while waiting:
        above = analysis.project.importers.get(waiting.pop(), set()) - importers
        importers |= above
        waiting += above
    variables = [setters[importer] for importer in importers if importer in setters]
    return frozenset.intersection(*variables) if variables else frozenset()


@lru_cache(maxsize=2)
def _setters(analysis: Analysis) -> dict[Path, frozenset[str]]:
    """Return the launching scripts, with the variables that each sets; empty if none sets any."""
    launching = [
        module
        for module in analysis.project.modules.values()
        if any(word in module.data for word in LAUNCH_WORDS)
    ]
    setters = {module.path: frozenset(_set_in(module)) for module in launching}
    return setters if any(setters.values()) else {}


def _set_in(module: SourceModule) -> Iterator[str]:
    for node in module.nodes if b"environ" in module.data else ():
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Subscript) and ast.unparse(target.value) == "os.environ":
                key = target.slice
                if isinstance(key, ast.Constant) and key.value in RANKS:
                    yield str(key.value)

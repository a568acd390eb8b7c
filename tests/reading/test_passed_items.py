"""Items of dictionaries that calls unpack: of the dictionary itself, and of no other with its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.model.calls.analysis import Analysis
from migrate.model.objects.parts import passed_nodes
from migrate.model.project.project import Project

STEP = """
def step(n, who=0):
    return n * who


"""
WAYS = {
    "one-variable-of-a-file": (
        "from settings import options\n{step}options['who'] = 1\nstep(**options)\n",
        "options = dict(n=2)\n",
        ["train.py"],
    ),
    "set-where-it-is-imported": (
        "from settings import options\n{step}step(**options)\n",
        "options = dict(n=2)\noptions['who'] = 1\n",
        ["settings.py"],
    ),
    "of-a-module": (
        "import settings\n{step}step(**settings.options)\n",
        "import settings\noptions = dict(n=2)\nsettings.options['who'] = 1\n",
        ["settings.py"],
    ),
    "set-by-a-function": (
        "from settings import prepare\n{step}options = dict(n=2)\nprepare(options)\nstep(**options)\n",
        "def prepare(options):\n    options['who'] = 1\n",
        ["settings.py"],
    ),
    "another-of-its-name": (
        "import settings\n{step}options = dict(n=2)\nstep(**options)\n",
        "options = dict(n=2)\noptions['who'] = 1\n",
        [],
    ),
    "attribute-of-another": (
        "import settings\n{step}"
        "class A:\n    def run(self):\n        self.options = {{}}\n        step(**self.options)\n",
        "class B:\n    def run(self):\n        self.options = {}\n        self.options['who'] = 1\n",
        [],
    ),
}


@pytest.mark.parametrize(("train", "settings", "files"), WAYS.values(), ids=WAYS)
def test_items_that_a_call_unpacks(
    tmp_path: Path, train: str, settings: str, files: list[str]
) -> None:
    (tmp_path / "train.py").write_text(train.format(step=STEP))
    (tmp_path / "settings.py").write_text(settings)
    analysis = Analysis(Project.of_files(tmp_path, sorted(tmp_path.glob("*.py"))))
    parts = [
        scope.module.path.name
        for (function, name), passed in passed_nodes(analysis).items()
        for _, scope in passed
        if function.name == "step" and name == "who"
    ]
    assert parts == files

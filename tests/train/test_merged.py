"""A trainer in another file, read as a part of the script."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.train.errors import TrainError
from migrate.train.slice.merged import merged
from migrate.train.slice.text import ScriptText

MAIN = '''"""Train."""
from __future__ import annotations
import torch
from trainer import Trainer as T
if __name__ == "__main__":
    T(torch.nn.Linear(2, 1)).fit()
'''
TRAINER = '''"""A trainer."""
import torch

class Trainer:
    def __init__(self, model):
        self.model = model

    def fit(self):
        return 3

if __name__ == "__main__":
    print("only this file")
'''


def script(folder: Path, main: str = MAIN, trainer: str = TRAINER) -> tuple[ScriptText, Path]:
    """Write both files."""
    (folder / "main.py").write_text(main)
    (folder / "trainer.py").write_text(trainer)
    return ScriptText(str(folder / "main.py"), main), folder / "trainer.py"


def test_definitions_stand_in_place_of_the_import(tmp_path: Path) -> None:
    text, module = script(tmp_path)
    whole = merged(text, [module])
    names: dict[str, object] = {"__name__": "other"}
    exec(compile(whole.source, "main.py", "exec"), names)
    assert names["T"] is names["Trainer"]
    assert "only this file" not in whole.source
    assert whole.source.splitlines()[1] == "from __future__ import annotations"
    line = whole.source.splitlines().index("        return 3") + 1
    assert whole.at(line) == f"{module}:9"


@pytest.mark.parametrize(
    ("main", "trainer", "what"),
    [
        (MAIN, TRAINER + "T = 3\ntorch = 4\n", "trainer.py: trains, and has the name torch"),
        (MAIN.replace("Trainer as T", "*"), TRAINER, "main.py:4: imports all names"),
        (
            MAIN.replace("from trainer import Trainer as T", "import trainer"),
            TRAINER,
            "trainer.py: trains, but",
        ),
        (
            MAIN,
            TRAINER + "HERE = __file__\n",
            "trainer.py:13: the module that trains reads __file__",
        ),
    ],
)
def test_what_cannot_be_merged_is_reported(
    tmp_path: Path, main: str, trainer: str, what: str
) -> None:
    text, module = script(tmp_path, main, trainer)
    with pytest.raises(TrainError) as caught:
        merged(text, [module])
    assert what in str(caught.value)


@pytest.mark.parametrize(("same", "refused"), [(("relu",), False), ((), True), (("silu",), True)])
def test_two_files_may_import_one_function_from_two_places(
    tmp_path: Path, same: tuple[str, ...], refused: bool
) -> None:
    first = MAIN.replace("import torch\n", "import torch\nfrom torch.nn.functional import relu\n")
    text, module = script(tmp_path, first, f"from torch import relu\n{TRAINER}")
    if refused:
        with pytest.raises(TrainError, match="has the name relu"):
            merged(text, [module], same)
    else:
        assert "from torch import relu" in merged(text, [module], same).source


def test_a_variable_of_two_files_is_not_one_since_its_values_are_equal(tmp_path: Path) -> None:
    main = MAIN.replace("import torch\n", "import torch\nsize = 1\n", 1)
    text, module = script(tmp_path, main, TRAINER + "size = 1  # its own\n")
    with pytest.raises(TrainError, match="has the name size"):
        merged(text, [module], ("size",))

"""The hazards of notebooks: cell and line, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrate.cli import commands


def notebook(folder: Path, *sources: str, name: str = "train.ipynb") -> Path:
    """Write a notebook with a cell of text above the code."""
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["torch.cuda"]}]
    for source in sources:
        lines = source.splitlines(keepends=True)
        cells.append({"cell_type": "code", "metadata": {}, "outputs": [], "source": lines})
    path = folder / name
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}, indent=1))
    return path


def run(*args: object) -> Result:
    return CliRunner().invoke(commands, ["check", *map(str, args)])


def places(path: Path, *args: str) -> list[str]:
    """Return `cell N:line M CODE` of each finding."""
    lines = run(path, *args).stdout.splitlines()[:-1]
    found = [line.removeprefix(f"{path}:").split(": ", 1) for line in lines]
    return [f"{place} {rest.split()[0]}" for place, rest in found]


CELLS = ("import torch", "x = 1\ntorch.cuda.set_device(0)  # größer", "y = 2")


class TestFormats:
    def test_text(self, tmp_path: Path) -> None:
        path = notebook(tmp_path, *CELLS)
        done = run(path)
        assert done.exit_code == 1
        assert done.stdout.startswith(
            f"{path}:cell 3:line 2: XLA827 error [*] torch.cuda.set_device"
        )

    def test_json(self, tmp_path: Path) -> None:
        path = notebook(tmp_path, *CELLS)
        found = json.loads(run(path, "--json").stdout)["findings"][0]
        assert (found["cell"], found["line"], found["column"]) == (3, 2, 1)
        text = path.read_text().splitlines()[found["file_line"] - 1]
        assert "torch.cuda.set_device(0)" in text

    def test_the_findings_of_a_script_have_no_cell(self, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text("\n".join(CELLS))
        found = json.loads(run(script, "--json").stdout)["findings"][0]
        assert not {"cell", "file_line"} & found.keys()

    def test_github_and_sarif_are_at_the_line_of_the_file(self, tmp_path: Path) -> None:
        path = notebook(tmp_path, *CELLS)
        line = next(
            number
            for number, text in enumerate(path.read_text().splitlines(), 1)
            if "set_device" in text
        )
        shown = run(path, "--format", "github").stdout
        assert f"line={line},title=XLA827" in shown
        assert "::cell 3:line 2: torch.cuda.set_device" in shown
        result = json.loads(run(path, "--format", "sarif").stdout)["runs"][0]["results"][0]
        place = result["locations"][0]
        assert place["physicalLocation"]["region"] == {"startLine": line}
        assert place["logicalLocations"] == [{"fullyQualifiedName": "cell 3:line 2"}]
        assert result["message"]["text"].startswith("cell 3:line 2: ")

    def test_lines_in_messages_are_those_of_cells(self, tmp_path: Path) -> None:
        path = notebook(
            tmp_path,
            "import torch\nimport torch.distributed as dist",
            "def f(rank, model):\n    if rank == 0:\n        torch.save(model, 'a')",
        )
        assert "in line 2 of cell 3" in run(path, "--select", "XLA301").stdout


class TestCells:
    def test_names_of_other_cells_are_known(self, tmp_path: Path) -> None:
        path = notebook(tmp_path, "from torch import cuda", "cuda.synchronize()")
        assert places(path) == ["cell 3:line 1 XLA832"]

    def test_a_comment_silences_its_line(self, tmp_path: Path) -> None:
        path = notebook(tmp_path, "import torch", "torch.cuda.synchronize()  # migrate: ignore")
        assert places(path) == []

    def test_a_cell_that_does_not_parse(self, tmp_path: Path) -> None:
        path = notebook(tmp_path, *CELLS, "x = 1\nprint torch")
        assert places(path) == ["cell 3:line 2 XLA827", "cell 5:line 2 XLA000"]
        assert places(path, "--select", "XLA801") == ["cell 3:line 2 XLA827"]

    def test_magics_are_no_hazards_and_hide_none(self, tmp_path: Path) -> None:
        path = notebook(
            tmp_path, "import torch\n%cd ..", "%%time\n!ls\ntorch.cuda.synchronize()", "%%bash\n(("
        )
        assert places(path) == ["cell 3:line 3 XLA832"]

    def test_a_cell_that_writes_a_script(self, tmp_path: Path) -> None:
        path = notebook(tmp_path, "%%writefile a.py\nimport torch\n\ntorch.cuda.synchronize()")
        assert places(path) == ["cell 2:line 4 XLA832"]


class TestLaunch:
    WORKER = "import torch_xla\n\ndef f(index):\n    print(index)"

    @pytest.mark.parametrize(
        ("launch", "found"),
        [
            ("torch_xla.launch(f)", ["cell 3:line 1 XLA707"]),
            ("torch_xla.launch(f, start_method='fork')", []),
            ("torch_xla.launch(f, (), 'fork')", []),
            ("torch_xla.launch(f, (), 'spawn')", ["cell 3:line 1 XLA707"]),
            ("torch_xla.launch(f, debug_single_process=True)", []),
            ("def g():\n    torch_xla.launch(f)\n\ng()", ["cell 3:line 2 XLA707"]),
        ],
    )
    def test_a_spawned_function_is_not_found(
        self, tmp_path: Path, launch: str, found: list[str]
    ) -> None:
        assert places(notebook(tmp_path, self.WORKER, launch)) == found

    def test_device_work_above_and_below_the_launch(self, tmp_path: Path) -> None:
        launch = "torch_xla.launch(f, start_method='fork')"
        work = "x = torch_xla.device()"
        assert places(notebook(tmp_path, self.WORKER, work, launch)) == ["cell 3:line 1 XLA706"]
        assert places(notebook(tmp_path, self.WORKER, launch, work)) == []


class TestFolders:
    def test_notebooks_in_a_folder(self, tmp_path: Path) -> None:
        notebook(tmp_path, *CELLS)
        (tmp_path / "bad.ipynb").write_text("torch {")
        (tmp_path / "text.ipynb").write_text(
            '{"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "torch"}]}'
        )
        (tmp_path / ".ipynb_checkpoints").mkdir()
        notebook(tmp_path / ".ipynb_checkpoints", *CELLS)
        lines = run(tmp_path).stdout.splitlines()
        assert [line.split(": ")[0] for line in lines[:-1]] == [
            f"{tmp_path}/bad.ipynb:1:1",
            f"{tmp_path}/train.ipynb:cell 3:line 2",
        ]

    def test_steps_are_followed_into_modules(self, tmp_path: Path) -> None:
        (tmp_path / "setup.py").touch()
        (tmp_path / "steps.py").write_text(
            "def one(model, x, optimizer):\n    loss = model(x).mean()\n    loss.backward()\n"
            "    optimizer.step()\n    return loss.item()\n"
        )
        path = notebook(
            tmp_path,
            "import torch\nfrom steps import one",
            "model.to('xla')\nfor x in loader:\n    one(model, x, optimizer)",
        )
        assert "steps.py:5" in run(path).stdout

    @pytest.mark.parametrize("text", ["torch {", '{"nbformat": 3, "worksheets": []}', "{}"])
    def test_one_that_is_named_and_cannot_be_read(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "bad.ipynb"
        path.write_text(text)
        done = run(path)
        assert done.exit_code == 2
        assert done.stderr.count("\n") == 1

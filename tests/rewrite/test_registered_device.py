"""Whoever runs a file that names the XLA device has imported torch_xla, which makes it known to torch."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from migrate.rewrite.folder import rewrite_folder

ENGINE = """
    import torch


    def move(model):
        return model.cuda()
"""
USES = """
    import torch
    from NAME import move


    def run():
        return move(torch.nn.Linear(2, 2))


    if __name__ == "__main__":
        run()
"""
TESTED = """
    import torch


    def test_move():
        assert torch.nn.Linear(2, 2).cuda()
"""


def importing(folder: Path, **files: str) -> set[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text).lstrip())
    done = rewrite_folder(folder, processes=1)
    texts = {file.name.stem: (file.after or b"").decode() for file in done.files}
    return {name for name, text in texts.items() if "import torch_xla\n" in text}


def test_a_program_that_names_no_device(tmp_path: Path) -> None:
    main = USES.replace("NAME", "engine")
    assert importing(tmp_path, engine=ENGINE, main=main) == {"engine"}


def test_by_way_of_another_file(tmp_path: Path) -> None:
    middle = "from engine import move\n"
    main = USES.replace("NAME", "middle")
    assert importing(tmp_path, engine=ENGINE, middle=middle, main=main) == {"engine"}


def test_a_program_that_names_one_does_it_for_the_module(tmp_path: Path) -> None:
    main = USES.replace("NAME", "engine").replace("(2, 2)", "(2, 2).cuda()")
    assert importing(tmp_path, engine=ENGINE, main=main) == {"main"}


def test_a_file_of_tests(tmp_path: Path) -> None:
    assert importing(tmp_path, test_engine=TESTED) == {"test_engine"}


def test_a_module_that_only_tests_run(tmp_path: Path) -> None:
    tested = "from engine import move\n\n\ndef test_it():\n    assert move(None)\n"
    assert importing(tmp_path, engine=ENGINE, test_engine=tested) == {"engine"}

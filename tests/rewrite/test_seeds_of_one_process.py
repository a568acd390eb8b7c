"""The seed of a script of one process, set in a file that names no device."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

TOOLS = """
    import random

    import torch


    def fix(seed):
        random.seed(seed)
        torch.manual_seed(seed)
"""
ENGINE = """
    import torch


    class Runner:
        def __init__(self, config):
            self.device = config.get("device", "cuda")
            self.model = torch.nn.Linear(2, 2).to(self.device)

        def run(self):
            optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            for _ in range(3):
                loss = self.model(torch.randn(2, 2, device=self.device)).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""
MAIN = """
    from tools import fix


    def main(config):
        from engine import Runner

        fix(config["seed"])
        Runner(config).run()


    if __name__ == "__main__":
        main({"seed": 3})
"""


def texts(folder: Path, style: Style, **files: str) -> dict[str, str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text).lstrip())
    done = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    return {file.name.stem: file.after.decode() for file in done.files}


@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_seed_of_another_file_seeds_the_device(tmp_path: Path, style: Style) -> None:
    """XLA kept its own seed, whatever the script was given: only scripts of several processes were asked."""
    after = texts(tmp_path, style, tools=TOOLS, engine=ENGINE, main=MAIN)
    seeds = "torch_xla.manual_seed(seed)" if style == "native" else "shims.manual_seed(seed)"
    assert seeds in after["tools"]


@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_seed_in_the_script_itself(tmp_path: Path, style: Style) -> None:
    main = """
        import torch
        from engine import Runner

        torch.manual_seed(3)
        Runner({}).run()
    """
    after = texts(tmp_path, style, engine=ENGINE, main=main)
    assert ("torch_xla." if style == "native" else "shims.") + "manual_seed(3)" in after["main"]


@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_project_of_the_host_is_not_seeded(tmp_path: Path, style: Style) -> None:
    engine = ENGINE.replace('config.get("device", "cuda")', '"cpu"')
    after = texts(tmp_path, style, tools=TOOLS, engine=engine, main=MAIN)
    assert after["tools"] == dedent(TOOLS).lstrip()


@pytest.mark.parametrize("style", ["native", "portable"])
def test_the_processes_of_a_loader_are_kept_from_xla(tmp_path: Path, style: Style) -> None:
    main = MAIN.replace(
        'fix(config["seed"])',
        "DataLoader([], worker_init_fn=fix)",
    ).replace("from tools", "from torch.utils.data import DataLoader\n\n    from tools")
    after = texts(tmp_path, style, tools=TOOLS, engine=ENGINE, main=main)
    assert after["tools"] == dedent(TOOLS).lstrip()

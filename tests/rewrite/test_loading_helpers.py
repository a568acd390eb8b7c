"""A checkpoint that a helper of another file loads, which names no device itself."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

HELPER = """
    import torch


    def fetch(path):
        return torch.load(path)


    class Store:
        def restore(self, net, path):
            content = torch.load(path, weights_only=False)
            net.load_state_dict(content["net"])
"""
BETWEEN = """
    from helper import Store, fetch
"""
MAIN = """
    import torch
    from between import Store, fetch


    def main():
        net = torch.nn.Linear(2, 2)DEVICE
        net.load_state_dict(fetch("a.pt"))
        Store().restore(net, "b.pt")
        print(net(torch.ones(2)DEVICE))


    if __name__ == "__main__":
        main()
"""


def helper(folder: Path, device: str, style: Style) -> str:
    """Return the helper of a project whose main script uses a device, rewritten."""
    texts = {"helper": HELPER, "between": BETWEEN, "main": MAIN.replace("DEVICE", device)}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(dedent(text))
    result = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    changed = {file.name.name: file.after for file in result.files}
    return changed.get("helper.py", dedent(HELPER).encode()).decode()


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        (
            "native",
            ["torch.load(path, map_location='cpu')", "weights_only=False, map_location='cpu')"],
        ),
        ("portable", ["shims.load(path)", "shims.load(path, weights_only=False)"]),
    ],
)
def test_helper_of_a_script_on_a_gpu_loads_to_the_cpu(
    tmp_path: Path, style: Style, expected: list[str]
) -> None:
    text = helper(tmp_path, ".cuda()", style).replace('"cpu"', "'cpu'")
    assert all(call in text for call in expected)


def test_helper_of_a_script_on_the_cpu_stays(tmp_path: Path) -> None:
    assert helper(tmp_path, "", "native") == dedent(HELPER)

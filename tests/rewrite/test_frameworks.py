"""Scripts whose training Accelerate, Fabric or Lightning runs stay as they are, with one finding."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.results import FileRewrite
from migrate.rewrite.story import rewrite

LOOP = """
    for x, y in loader:
        loss = loss_fn(model(x), y)
        {backward}
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
"""
ACCELERATE = (
    """
import torch
from accelerate import Accelerator


def main(model, loader, optimizer, loss_fn):
    torch.backends.cuda.matmul.allow_tf32 = True
    accelerator = Accelerator(mixed_precision="fp16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    ema = torch.nn.Linear(2, 2).cuda()
"""
    + LOOP.format(backward="accelerator.backward(loss)")
    + """
    if accelerator.is_main_process:
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
"""
)
FABRIC = (
    """
import lightning as L
import torch


def main(model, loader, optimizer, loss_fn):
    fabric = L.Fabric(accelerator="cuda", devices=8)
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
"""
    + LOOP.format(backward="fabric.backward(loss)")
    + """
    print(torch.cuda.max_memory_allocated())
"""
)
MANY = ACCELERATE.replace(
    "def main", "OTHERS = [\n" + "    torch.ones(2).cuda(),\n" * 6 + "]\n\n\ndef main"
)
LIGHTNING = """
import pytorch_lightning as pl
import torch


class Net(pl.LightningModule):
    def training_step(self, batch, index):
        noise = torch.randn(2).cuda()
        return self.net(batch + noise).mean()


pl.Trainer(gpus=8).fit(Net())
"""


@pytest.mark.parametrize(
    ("script", "says", "lines"),
    [
        (ACCELERATE, "accelerate launch --tpu", "change: line 10"),
        (MANY, "accelerate launch --tpu", "change: line 7, 8, 9, 10, 11, 12, 20"),
        (FABRIC, "accelerator='tpu'", "change: line 7, 18"),
        (LIGHTNING, "accelerator='tpu'", "line 8"),
    ],
    ids=["accelerate", "many lines", "fabric", "lightning"],
)
def test_the_script_stays_with_one_finding(
    tmp_path: Path, script: str, says: str, lines: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    done = rewrite(path)
    assert done.data == path.read_bytes()
    (finding,) = done.findings
    assert says in finding.message
    assert "leave the script as it is" in finding.message
    assert lines in finding.message
    (file,) = rewrite_folder(tmp_path, processes=1).files
    assert (file.after, len(file.findings)) == (path.read_bytes(), 1)


def test_a_script_that_only_borrows_from_one_is_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from accelerate.utils import set_seed\nimport torch\n\n"
        "set_seed(0)\nmodel = torch.nn.Linear(2, 2).cuda()\n"
    )
    assert b'.to("xla")' in rewrite(path).data


PROJECT = {
    "train.py": ACCELERATE.replace(
        "import torch\n", "import torch\nimport nets\nimport losses\n", 1
    ),
    "nets.py": "import torch\n\n\ndef pad(x):\n    return torch.cat([x, torch.zeros(2).cuda()])\n",
    "losses.py": "import torch\n\n\ndef weights():\n    return torch.ones(2).cuda()\n",
    "plain.py": """
        import torch
        from losses import weights

        model = torch.nn.Linear(2, 2).cuda()
        if __name__ == "__main__":
            print(model(weights()))
    """,
    "tests/test_nets.py": "import nets\n\n\ndef test_pad():\n    assert nets.pad\n",
}


def test_what_only_such_scripts_use_stays_too(tmp_path: Path) -> None:
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    files: dict[str, FileRewrite] = {
        file.name.as_posix(): file for file in rewrite_folder(tmp_path, processes=1).files
    }
    assert not files["train.py"].changed
    assert not files["nets.py"].changed
    (finding,) = files["nets.py"].findings
    assert "train.py" in finding.message
    assert "line 5" in finding.message
    assert files["losses.py"].changed  # plain.py uses it too
    assert files["plain.py"].changed


def test_names_imported_from_modules_of_cuda_are_reported_in_what_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        ACCELERATE.replace("import torch\n", "import loss\nimport torch\n")
    )
    (tmp_path / "loss.py").write_text(
        "import torch\n"
        "from torch.cuda.amp import autocast as mixed\n\n\n"
        "class Loss(torch.nn.Module):\n"
        "    @mixed(enabled=False)\n"
        "    def forward(self, x):\n"
        "        return x.float().mean()\n"
    )
    files = {file.name.as_posix(): file for file in rewrite_folder(tmp_path, processes=1).files}
    (finding,) = files["loss.py"].findings
    assert finding.line == 6
    assert "line 6" in finding.message

"""Scripts whose training Accelerate, Fabric or Lightning runs stay as they are, with one finding."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite
from migrate.rewrite.results import FileRewrite

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
def test_the_script_stays_with_one_finding_of_the_framework(
    tmp_path: Path, script: str, says: str, lines: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    done = rewrite(path)
    assert done.data == path.read_bytes()
    (finding,) = [one for one in done.findings if one.rule == "frameworks"]
    assert says in finding.message
    assert "leave the script as it is" in finding.message
    assert lines in finding.message
    named = [int(line) for line in lines.rpartition("line ")[2].split(", ")]
    assert not [one for one in done.findings if one.line in named and one is not finding]
    (file,) = rewrite_folder(tmp_path, processes=1).files
    assert (file.after, len(file.findings)) == (path.read_bytes(), len(done.findings))


HELPERS = """
import torch


def is_main_process(accelerator):
    return accelerator.is_main_process


def save_on_master(accelerator, *args, **kwargs):
    if is_main_process(accelerator):
        torch.save(*args, **kwargs)


def save_model(accelerator, model, path):
    if accelerator.is_main_process:
        to_save = {"model": model.state_dict()}
        save_on_master(accelerator, to_save, path)
"""
SAVING = """
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

import misc


def main():
    accelerator = Accelerator()
    set_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(3):
        loss = model(torch.ones(2, 4, device=accelerator.device)).mean()
        accelerator.backward(loss)
        optimizer.step()
        misc.{save}(accelerator, {given}, "last.pth")


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("save", "given"),
    [("save_model", "model"), ("save_on_master", '{"model": model.state_dict()}')],
)
def test_a_save_of_one_replica_through_helpers_of_such_a_script_is_reported(
    tmp_path: Path, save: str, given: str
) -> None:
    helpers = HELPERS if save == "save_model" else HELPERS.partition("def save_model")[0]
    (tmp_path / "misc.py").write_text(helpers)
    (tmp_path / "train.py").write_text(SAVING.replace("{save}", save).replace("{given}", given))
    files = {file.name.as_posix(): file for file in rewrite_folder(tmp_path, processes=1).files}
    findings = [(one.rule, one.line) for one in files["misc.py"].findings]
    assert ("XLA301", 11) in findings
    assert not [one for one in files["train.py"].findings if one.rule == "XLA852"]


def test_a_save_of_a_plain_value_through_helpers_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "misc.py").write_text(HELPERS.partition("def save_model")[0])
    text = SAVING.replace("{save}", "save_on_master").replace("{given}", '{"step": step}')
    (tmp_path / "train.py").write_text(text)
    for file in rewrite_folder(tmp_path, processes=1).files:
        assert not [one for one in file.findings if one.rule == "XLA301"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("def main():\n    run()\n\n\nif __name__ == '__main__':\n    main()\n", ""),
        (
            "def train():\n    run()\n\n\nif __name__ == '__main__':\n    train()\n",
            "--main_training_function train",
        ),
        (
            "def load(path):\n    return path\n\n\ndef do_train(config, accelerator):\n    pass\n\n\n"
            "if __name__ == '__main__':\n    accelerator = Accelerator()\n    config = load('a')\n"
            "    do_train(config, accelerator)\n",
            "--main_training_function do_train; `do_train` is called without arguments",
        ),
        (
            "def load(path):\n    return path\n\n\ndef fit(config):\n    Accelerator()\n\n\n"
            "if __name__ == '__main__':\n    fit(load('a'))\n",
            "--main_training_function fit",
        ),
        (
            "def first():\n    Accelerator()\n\n\ndef second():\n    Accelerator()\n\n\n"
            "if __name__ == '__main__':\n    first()\n    second()\n",
            "below the guard it calls `first`, `second`",
        ),
        (
            "def main(args):\n    run()\n\n\nif __name__ == '__main__':\n    main(parse())\n",
            "`main` is called without arguments: make `args` in it",
        ),
        (
            "@hydra.main()\ndef main(config):\n    run()\n\n\nif __name__ == '__main__':\n    main()\n",
            "",
        ),
        ("for epoch in range(3):\n    run()\n", "it has no function `main`"),
        ("class Trainer:\n    def fit(self):\n        run()\n", ""),
    ],
    ids=[
        *("main", "another name", "the one that is given the accelerator", "the one that makes it"),
        *("several", "arguments"),
        *("hydra", "no function", "a part of a program"),
    ],
)
def test_what_accelerate_launch_lacks_is_in_the_finding(
    tmp_path: Path, script: str, says: str
) -> None:
    path = tmp_path / "train.py"
    run = "def run():\n    accelerator = Accelerator()\n\n\n"
    path.write_text(f"import hydra\nfrom accelerate import Accelerator\n\n\n{run}{script}")
    (finding,) = [one for one in rewrite(path).findings if one.rule == "frameworks"]
    _, _, after = finding.message.partition("leave the script as it is")
    assert says in after
    assert bool(says) == bool(after)


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


@pytest.mark.parametrize(
    ("script", "true", "false"),
    [
        (ACCELERATE, "mixed_precision='no'", "mixed_precision='bf16'"),
        (LIGHTNING, "precision='32-true'", "precision='bf16-true'"),
        (
            "from transformers import Trainer\n\nTrainer(None).train()\n",
            "without bf16=True, which makes weights and optimizer state bfloat16",
            "bf16=True in place",
        ),
        ("from composer import Trainer\n\nTrainer().fit()\n", "needs torch before 2.7.1", "tpu"),
    ],
    ids=["accelerate", "lightning", "transformers", "composer"],
)
def test_no_framework_is_advised_what_makes_its_weights_bfloat16(
    tmp_path: Path, script: str, true: str, false: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    (finding,) = [one for one in rewrite(path).findings if one.rule == "frameworks"]
    assert true in finding.message
    assert false not in finding.message


EARLY = """
import argparse
import torch
from accelerate import Accelerator, PartialState

{top}


def options(values=None):
    parser = argparse.ArgumentParser()
    return parser.parse_args(values)


def main():
    {inside}
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x in loader:
        accelerator.backward(model(x).mean())
        optimizer.step()


if __name__ == "__main__":
    {guard}
"""


def early(folder: Path, **parts: str) -> list[tuple[int, str]]:
    """Return the findings of a script of Accelerate about what runs when it is imported."""
    words = {"top": "", "inside": "accelerator = Accelerator()", "guard": "main()"}
    path = folder / "train.py"
    path.write_text(EARLY.format(**{**words, **parts}).lstrip())
    return [
        (note.line, note.message)
        for note in rewrite(path).findings
        if note.rule == "frameworks" and "at import" in note.message
    ]


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ("accelerator = Accelerator(mixed_precision='no')", "Runtime is already initialized"),
        ("with torch.no_grad():\n    state = PartialState()", "PartialState() at import"),
        ("parser = argparse.ArgumentParser()\nargs = parser.parse_args()", "parser.parse_args()"),
        ("args, rest = argparse.ArgumentParser().parse_known_args()", "sets sys.argv"),
        ("def build():\n    return Accelerator()\n\n\naccelerator = build()", "Accelerator()"),
    ],
)
def test_what_a_script_may_not_do_when_accelerate_imports_it(
    tmp_path: Path, top: str, message: str
) -> None:
    ((_, text),) = early(tmp_path, top=top)
    assert message in text


def test_what_runs_in_main_or_under_the_guard_is_no_matter(tmp_path: Path) -> None:
    assert early(tmp_path) == []
    inside = "args = options()\n    accelerator = Accelerator()"
    assert early(tmp_path, inside=inside) == []
    assert early(tmp_path, guard="accelerator = Accelerator()\n    main()") == []
    assert early(tmp_path, top="args = argparse.ArgumentParser().parse_args([])") == []


BESIDE = """
import torch
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    accelerator = Accelerator()
    net = torch.nn.Linear(3, 1)
    plain = DDP(net)
    told = DDP(net, device_ids=[0])
    net = torch.compile(net)
    bare = net._orig_mod
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    net, optimizer = accelerator.prepare(net, optimizer)
    torch.distributed.barrier()
    torch.cuda.empty_cache()
    with torch.inference_mode():
        net(torch.zeros(1, 3))
"""


def test_what_is_as_wrong_under_a_framework_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(BESIDE.lstrip())
    done = rewrite(path)
    assert not done.changed
    said = {note.rule: note.message for note in done.findings}
    # DDP and the barrier raise where nothing joins a group: XLA885 says it of both.
    assert said.keys() >= {"XLA885", "compile", "fused-optimizer", "inference-mode"}
    assert said.keys().isdisjoint({"barrier", "ddp"})
    hints = [(note.line, note.rule) for note in done.hints if note.rule in ("ddp", "cuda-memory")]
    assert hints == [(16, "cuda-memory")]


@pytest.mark.parametrize(
    ("made", "edits"),
    [
        ("pl.Trainer(max_steps=1)", 0),
        ("pl.Trainer.from_argparse_args(args, max_steps=1)", 0),
        ("print('no trainer')", 1),
    ],
)
def test_a_launcher_of_lightning_gets_no_seed_of_xla(tmp_path: Path, made: str, edits: int) -> None:
    # It would open the runtime before Lightning starts the replicas, which then raise.
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nimport pytorch_lightning as pl\n\n\ndef main(args, model, data):\n"
        f"    pl.seed_everything(1)\n    x = torch.ones(2).cuda()\n    trainer = {made}\n"
        "    trainer.fit(model, data)\n"
    )
    found = rewrite(script)
    assert ("torch_xla" in found.data.decode()) is bool(edits)

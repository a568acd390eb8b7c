"""Saves and loads of safetensors: the functions that come into a script, and what they write on XLA."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

SCRIPT = """\
import safetensors.torch
import torch
import torch.distributed as dist
from safetensors.torch import load_file as load, load_model, save_file as sf


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.words.weight


def save(model, epoch, out, rank):
    if rank == 0 and epoch % 2 == 0:
        safetensors.torch.save_model(model, f"{out}/model.safetensors")
    if rank == 0:
        sf(model.state_dict(), filename=f"{out}/all.safetensors", metadata={"by": "us"})


def main(out):
    rank = dist.get_rank()
    model = Tied()
    model.to(torch.device("cuda", rank))
    save(model, 0, out, rank)
    load_model(model, f"{out}/model.safetensors", device=str(torch.device("cuda")))
    load(f"{out}/all.safetensors", device=f"cuda:{rank}")
"""


def rewritten(script: str, style: str = "native") -> Rewrite:
    options = RewriteOptions(style="portable" if style == "portable" else "native")
    return rewrite_source(parse(script.encode(), Path("train.py")), options=options)


@pytest.mark.parametrize("style", ["native", "portable"])
def test_all_replicas_save_and_one_writes(style: str) -> None:
    done = rewritten(SCRIPT, style)
    after = done.data.decode()
    assert [
        note.message for note in done.findings if note.rule in ("save", "XLA301", "XLA415")
    ] == []
    first = "shims.is_main()" if style == "portable" else "xm.is_master_ordinal(local=False)"
    assert after.count(f"    if {first}:\n        safetensors.torch.save_file(on_host, path") == 2
    assert (
        "    if epoch % 2 == 0:\n"
        '        save_weights(model, f"{out}/model.safetensors")\n'
        '    save_tensors(model.state_dict(), path=f"{out}/all.safetensors", metadata={"by": "us"})\n'
    ) in after
    assert '    load_weights(model, f"{out}/model.safetensors")\n' in after
    device = "str(shims.device())" if style == "portable" else '"xla"'
    assert f"device={device})" in after
    assert "import safetensors.torch\n" in after
    assert rewritten(after, style).data.decode() == after


@pytest.mark.parametrize(
    ("save", "said"),
    [
        (
            "st.save_model(model, f'{dist.get_rank()}.safetensors')",
            "each replica writes a safetensors",
        ),
        (
            "st.save_file(model.state_dict(), *args)",
            "safetensors with arguments that cannot be read",
        ),
        (
            "if dist.get_rank() == 1 and loss < best:\n        st.save_model(model, 'a')",
            "under `if dist.get_rank() == 1 and loss < best:`",
        ),
    ],
)
def test_what_cannot_move_is_reported(save: str, said: str) -> None:
    """The message says what safetensors needs, and nothing of `xm.save`."""
    script = (
        "import safetensors.torch as st\nimport torch.distributed as dist\n\n\n"
        f"def finish(model, args, loss, best):\n    model.cuda()\n    {save}\n"
    )
    done = rewritten(script)
    (message,) = (note.message for note in done.findings if note.rule == "save")
    assert said in message
    assert "xm.save" not in message


@pytest.mark.parametrize(
    "save",
    [
        "if dist.get_rank() == 0:\n        st.save_file({k: v.cpu() for k, v in weights.items()}, 'a')",
        "on_host = {k: v.detach().cpu() for k, v in weights.items()}\n"
        "    if dist.get_rank() == 0:\n        st.save_file(on_host, 'a')",
    ],
)
def test_copies_on_the_cpu_stay(save: str) -> None:
    script = (
        "import safetensors.torch as st\nimport torch.distributed as dist\n\n\n"
        f"def finish(model, weights):\n    model.cuda()\n    {save}\n"
    )
    done = rewritten(script)
    assert "save_tensors" not in done.data.decode()
    assert [note for note in done.findings if note.rule == "save"] == []


def test_a_converter_on_the_host_stays_and_nothing_is_said() -> None:
    script = "import torch\nfrom safetensors.torch import save_model\n\nsave_model(make(), 'a')\n"
    done = rewritten(script)
    assert done.data.decode() == script
    assert done.findings == ()


CHECKS = """
torch.manual_seed(0)
torch.__future__.set_swap_module_params_on_conversion(True)
here, there = Tied(), Tied()
safetensors.torch.save_model(here, "host.safetensors")
model = Tied().to("xla")
load_weights(model, "host.safetensors")
assert torch.equal(model.head.weight.cpu(), here.head.weight)
assert model.head.weight is model.words.weight
save_weights(model, "device.safetensors", {"by": "us"})
a, b = (safetensors.torch.load_file(f"{name}.safetensors") for name in ("host", "device"))
assert list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)
safetensors.torch.load_model(there, "device.safetensors")
assert torch.equal(there.head.weight, here.head.weight)
save_tensors({"t": model.head.weight.detach().t()}, "t.safetensors")
assert torch.equal(load_file("t.safetensors")["t"], here.head.weight.t())
try:
    load_weights(torch.nn.Linear(2, 2).to("xla"), "t.safetensors")
except RuntimeError as error:
    assert "Missing key" in str(error)
else:
    raise AssertionError("a file of another model was loaded")
print("held")
"""


@pytest.mark.long
def test_the_functions_do_on_xla_what_safetensors_does_on_the_host(tmp_path: Path) -> None:
    after = (
        rewritten(SCRIPT).data.decode().replace("load_file as load", "load_file, load_file as load")
    )
    script = tmp_path / "run.py"
    script.write_text(f"{after}\n\n{textwrap.dedent(CHECKS)}")
    done = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.endswith("held\n"), done.stderr

"""What a rewrite leaves of CUDA beside calls of torch.cuda is reported, in both styles."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import STYLES, RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HEAD = """
import os
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
"""
MAIN = """
def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = DDP(Net().cuda(), device_ids=[local])
    opt = torch.optim.AdamW(model.parameters())
    for step in range(3):
        loss = model(torch.randn(8, 4).cuda()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    main()
"""


def lines_of(script: str, rule: str, style: Style) -> list[int]:
    """Return the lines of `script` at which the rewrite of a DDP program reports in the name of `rule`."""
    above = HEAD.count("\n")
    text = f"{HEAD}{textwrap.dedent(script).strip()}\n\n{MAIN}"
    done = rewrite_source(
        parse(text.encode(), Path("script.py")), options=RewriteOptions(style=style)
    )
    return [note.line - above for note in done.findings if note.rule == rule]


def marked(script: str) -> list[int]:
    lines = textwrap.dedent(script).strip().splitlines()
    return [number for number, line in enumerate(lines, 1) if line.endswith("# here")]


CASES = {
    "hub-kernel": (
        "unhandled",
        """
        import kernels

        fast = kernels.get_kernel("someone/attention").forward  # here
        """,
    ),
    "layers-of-the-hub": (
        "unhandled",
        """
        from kernels import use_kernel_forward_from_hub as swapped

        @swapped("Norm")  # here
        class Norm(nn.Module):
            pass
        """,
    ),
    "attention-implementation": (
        "XLA414",
        """
        from transformers import AutoModel

        KIND = "flash_attention_3"
        net = AutoModel.from_pretrained("x", attn_implementation=KIND)  # here
        """,
    ),
    "compiled-flex-attention": (
        "unhandled",
        """
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        attend = torch.compile(flex_attention)  # here
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8)  # here
        """,
    ),
    "flex-attention": (
        "unhandled",
        """
        from torch.nn.attention import flex_attention as fa

        def attend(q, k, v):
            return fa.flex_attention(q, k, v)  # here
        """,
    ),
    "liger": ("XLA410", "from liger_kernel.transformers import LigerRMSNorm  # here"),
    "linear-attention": ("XLA410", "import fla.layers  # here"),
    "cuda-optimizer": ("XLA410", "from adam_atan2 import AdamATan2  # here"),
    "sparse": (
        "XLA606",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(num_embeddings=8, embedding_dim=4, sparse=True)  # here
        """,
    ),
    "sparse-adam": (
        "XLA606",
        """
        def sparse(net):
            return torch.optim.SparseAdam(list(net.parameters()))  # here
        """,
    ),
    "address": (
        "rendezvous-address",
        """
        def where():
            host = os.environ["MASTER_ADDR"]  # here
            return f"tcp://{host}:{int(os.environ.get('MASTER_PORT'))}"  # here
        """,
    ),
    "group-rank": ("rendezvous-address", 'node = int(os.environ["GROUP_RANK"])  # here'),
    "flags": (
        "XLA829",
        """
        def stop(step):
            done = torch.tensor([1 if step > 7 else 0]).cuda()
            dist.all_reduce(done, op=dist.ReduceOp.MAX)  # here
        """,
    ),
    "optimizer-state": (
        "XLA209",
        """
        def load(optimizer, local):
            for state in optimizer.state.values():
                for k, v in state.items():
                    if torch.is_tensor(v):
                        state[k] = v.cuda(local)  # here
        """,
    ),
    "loaded": (
        "XLA830",
        """
        def get(path, device):
            return torch.load(path, map_location=device)

        def look_up(path, x):
            table = get(path, torch.device("cuda"))
            x = x.cuda()
            return table[x]  # here
        """,
    ),
    "assigned": (
        "XLA830",
        """
        def resume(net, path):
            net.cuda()
            net.load_state_dict(torch.load(path, map_location="cuda"), assign=True)  # here
        """,
    ),
    "compiled-names": (
        "compile",
        """
        def reset(net):
            net = torch.compile(net.cuda())
            head = [p for name, p in net.named_parameters() if name.startswith("_orig_mod.head")]  # here
            state = net.state_dict()
            state[f"_orig_mod.{'bias'}"] = torch.zeros(2)  # here
            more = {"_orig_mod." + name: value for name, value in state.items()}  # here
            cut = {name[len("_orig_mod.") :]: value for name, value in state.items()}  # here
            return head, more, cut, state.pop("_orig_mod.weight")  # here
        """,
    ),
}


OWNER = """
    def update(net):
        for i, p in enumerate(net.parameters()):
            if i % dist.get_world_size() == dist.get_rank():  # here
                p.grad.mul_(2)
            dist.broadcast(p.grad, src=i % dist.get_world_size())
"""


def test_an_owner_of_parameters_computes_between_two_graphs() -> None:
    """The native style writes the remedy of XLA310; a portable script keeps its loop."""
    assert lines_of(OWNER, "XLA310", "portable") == marked(OWNER)
    assert lines_of(OWNER, "XLA310", "native") == []
    done = rewrite_source(
        parse(f"{HEAD}{textwrap.dedent(OWNER)}{MAIN}".encode(), Path("script.py"))
    )
    assert [edit.rule for edit in done.edits].count("uneven-sync") == 1


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("rule", "script"), CASES.values(), ids=CASES)
def test_what_fails_on_a_tpu_is_reported_at_its_line(rule: str, script: str, style: Style) -> None:
    assert lines_of(script, rule, style) == marked(script) != []


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "body",
    [
        'return {k.replace("_orig_mod.", ""): v for k, v in state.items()}',
        'return {k.removeprefix("module.").removeprefix("_orig_mod."): v for k, v in state.items()}',
        """
        prefix = "_orig_mod."
        for k in list(state):
            if k.startswith(prefix):
                state[k[len(prefix):]] = state.pop(k)
        """,
        'return {k[10:] if k.startswith("_orig_mod.") else k.removeprefix("x"): v for k, v in state.items()}',
        'return {k.split("_orig_mod.")[-1]: v for k, v in state.items()}',
        'return getattr(net, "_orig_mod", net).state_dict()',
        """
        import re
        return {re.sub(r"^_orig_mod\\.", "", k): v for k, v in state.items()}
        """,
    ],
)
def test_to_take_the_prefix_of_compiled_names_off_is_right(body: str, style: Style) -> None:
    script = f"def strip(net, state):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}"
    assert lines_of(script, "compile", style) == []


def test_a_script_that_keeps_its_compilation_keeps_its_names() -> None:
    script = """
        def build(net):
            net = torch.compile(net, backend="openxla")
            return net.state_dict()["_orig_mod.weight"]
        """
    assert lines_of(script, "compile", "native") == []


def test_what_another_file_loads_is_reported_where_it_meets_the_device(tmp_path: Path) -> None:
    (tmp_path / "files.py").write_text(
        textwrap.dedent(
            """
            import torch


            class Reader:
                def __init__(self, path):
                    self.blob = torch.load(path, map_location="cuda")

                def table(self):
                    return self.blob["table"]


            def read(path, device):
                blob = torch.load(path, map_location=device)
                return blob["state"]
            """
        )
    )
    script = """
        from files import Reader, read

        def run(net, x, device):
            net, x = net.cuda(), x.cuda()
            table = Reader("a.pt").table()
            net.load_state_dict(read("b.pt", torch.device("cuda")), assign=True)  # here
            return net(x) * table[x]  # here
        """
    (tmp_path / "main.py").write_text(f"{HEAD}{textwrap.dedent(script).strip()}\n\n{MAIN}")
    done = rewrite_folder(tmp_path, processes=1)
    notes = [note for file in done.files for note in file.findings if note.rule == "XLA830"]
    above = HEAD.count("\n")
    assert sorted(note.line - above for note in notes) == marked(script)

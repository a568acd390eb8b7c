"""Groups that take tensors of the CPU as well as those of the GPU: what their collectives are given."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

MAIN = """
    import torch
    import torch.distributed as dist
    from meeting import meet, total, to_first


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.seen = torch.zeros(1)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            return self.layer(x)


    def embed(model, batches):
        parts = []
        for batch in batches:
            parts.append(model(batch.cuda()).detach())
        return torch.cat(parts)


    def main(batches, device):
        dist.init_process_group(BACKEND)
        torch.cuda.set_device(dist.get_rank())
        model = Net().cuda()
        loss = model(batches[0].cuda()).mean()
        TENSOR


    if __name__ == "__main__":
        main([torch.randn(2, 4)], "cuda")
"""
MEETING = """
    import torch.distributed as dist


    def total(value):
        dist.all_reduce(value)
        return value


    def meet(value, group):
        dist.all_reduce(value, group=group)


    def to_first(value, parts=None):
        dist.gather(value, parts, dst=0)
        return parts
"""
# What is given to a collective, and the rules that speak of it by file.
HOST = [
    "total(embed(model, batches).cpu())",
    "to_first(embed(model, batches).float().to('cpu'))",
    "x = loss.detach(); x = x.cpu(); total(x)",
    "count = torch.tensor([len(batches)]); total(count)",
    "total(model.seen)",
    "total(torch.stack([loss.cpu(), loss.cpu()]))",
    "meet(embed(model, batches).cpu(), dist.new_group([0, 1]))",
]
ON_DEVICE = [
    "total(embed(model, batches))",
    "x = torch.zeros(1); x = x.to(device); total(x)",
    "total(loss.detach() / 2); total(torch.ones(2, device=loss.device))",
    "total(model.mean); total(model.layer.weight.data)",
    "for p in model.parameters(): dist.all_reduce(p.grad)",
    "for name, p in model.named_parameters(): dist.broadcast(p.data, 0)",
    "group = dist.new_group(backend='gloo'); meet(embed(model, batches).cpu(), group)",
    "dist.all_reduce(loss.cpu(), group=dist.new_group(backend='gloo'))",
]


def notes(folder: Path, backend: str, tensor: str, style: Style) -> list[tuple[str, str]]:
    text = dedent(MAIN).lstrip().replace("BACKEND", backend).replace("TENSOR", tensor)
    (folder / "main.py").write_text(text)
    (folder / "meeting.py").write_text(dedent(MEETING).lstrip())
    done = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    rules = ("collective-inputs", "init-process-group")
    return [
        (file.name.stem, note.rule)
        for file in done.files
        for note in file.findings
        if note.rule in rules
    ]


@pytest.mark.parametrize("tensor", HOST)
def test_a_tensor_of_the_cpu_from_another_function(tmp_path: Path, tensor: str) -> None:
    assert notes(tmp_path, "", tensor, "native") == [("meeting", "collective-inputs")]


@pytest.mark.parametrize("tensor", ON_DEVICE)
def test_a_tensor_of_the_device(tmp_path: Path, tensor: str) -> None:
    assert notes(tmp_path, "", tensor, "native") == []


@pytest.mark.parametrize("style", ["native", "portable"])
def test_each_way_to_join_such_a_group(tmp_path: Path, style: Style) -> None:
    where = [("meeting", "collective-inputs")]
    both = '"cpu:gloo,cuda:nccl"'
    assert notes(tmp_path, "backend=None", HOST[0], style) == where
    assert where[0] in notes(tmp_path, both, HOST[0], style)
    assert notes(tmp_path, '"nccl"', HOST[0], style) == []  # raises on CUDA as well


@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_tensor_of_unknown_origin_is_named_where_the_group_is_joined(
    tmp_path: Path, style: Style
) -> None:
    tensor = "import metrics; total(metrics.tensors(model))"
    assert notes(tmp_path, "", tensor, style) == [("main", "init-process-group")]
    assert notes(tmp_path, '"nccl"', tensor, style) == []


def test_another_program_has_nothing_to_do_with_it(tmp_path: Path) -> None:
    other = """
        import torch
        import torch.distributed as dist

        if __name__ == "__main__":
            dist.init_process_group()
            model = torch.nn.Linear(2, 2).cuda()
    """
    (tmp_path / "other.py").write_text(dedent(other).lstrip())
    assert notes(tmp_path, '"nccl"', HOST[0], "native") == []
    tensor = "import metrics; total(metrics.tensors(model))"
    assert notes(tmp_path, '"nccl"', tensor, "native") == []


def test_names_that_follow_from_each_other_many_times(tmp_path: Path) -> None:
    """Each is followed once, not once for each of the ways that lead to it, and none is forgotten."""
    turns = "".join(
        f"""
    if batches[{i}].ndim:
        x = torch.add(y, z)
    else:
        y = torch.add(x, z)
        z = torch.add(x, y)"""
        for i in range(10)
    )
    start = "x = {0}\n    y = {0}\n    z = {0}"
    on_host = start.format("torch.ones(3)") + turns + "\n    total(z)"
    assert notes(tmp_path, "", on_host, "native") == [("meeting", "collective-inputs")]
    on_device = start.format("loss") + turns + "\n    total(z)"
    assert notes(tmp_path, "", on_device, "native") == []

"""XLA107: a number of the batch that another file's function makes a tensor of the device of."""

from __future__ import annotations

import textwrap
from pathlib import Path

from migrate.rewrite.folder import rewrite_folder

FILES = {
    "masks.py": """
        import torch


        def block_mask(lengths: list, total: int, device="cpu"):
            if sum(lengths) != total:
                raise ValueError("these lengths do not fill the row")
            parts = []
            for n in lengths:
                parts.append(torch.tril(torch.ones((n, n), dtype=torch.bool, device=device)))
            return torch.block_diag(*parts)


        def of_one_size(sizes: list, device="cpu"):
            return [torch.zeros(n, device=device) for n in sizes]
    """,
    "train.py": """
        import torch
        import torch.distributed as dist
        from masks import block_mask, of_one_size
        from torch.nn.parallel import DistributedDataParallel as DDP
        from torch.utils.data import DataLoader


        class Engine:
            def __init__(self, model, device):
                self.model = DDP(model.to(device))
                self.device = device
                self.optimizer = torch.optim.AdamW(model.parameters())

            def step(self, batch):
                x = batch["x"].to(self.device)
                masks = [block_mask(row, 64, self.device) for row in batch["lengths"]]
                scales = of_one_size([8, 16], self.device)
                loss = self.model(x, torch.stack(masks), scales).mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()


        def main(model, data):
            dist.init_process_group("nccl")
            engine = Engine(model, f"cuda:{dist.get_rank()}")
            for batch in DataLoader(data, batch_size=8, drop_last=True):
                engine.step(batch)
    """,
}


def test_that_a_length_of_the_batch_is_found_as_a_size_in_another_file(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip())
    done = rewrite_folder(tmp_path, processes=1)
    found = {
        (file.name.as_posix(), note.line): note.message
        for file in done.files
        for note in file.findings
        if note.rule == "XLA107"
    }
    assert list(found) == [("masks.py", 9)]
    message = found["masks.py", 9]
    assert "`lengths` is data, and decides a size in the graph" in message
    assert message.endswith("(called from train.py:16)")

"""XLA109: batches of graphs that a project's own loader joins, wherever the lists are held."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

LOADER = """
    import torch.utils.data

    from batch import Joined


    class GraphLoader(torch.utils.data.DataLoader):
        def __init__(self, dataset, batch_size=1, **options):
            super(GraphLoader, self).__init__(
                dataset, batch_size, collate_fn=lambda graphs: Joined.of(graphs), **options
            )
"""
BATCH = """
    import torch


    class Joined(dict):
        @staticmethod
        def of(graphs):
            batch, total = Joined(), 0
            {begin}
            for graph in graphs:
                {put}
                total += graph["x"].shape[0]
            {joined}
            return batch
"""


@pytest.mark.parametrize(
    ("begin", "put", "joined"),
    [
        (
            'batch["x"] = []',
            'batch["x"].append(graph["x"])',
            'batch["x"] = torch.cat(batch["x"], dim=0)',
        ),
        ("batch.x = []", 'batch.x.append(graph["x"])', "batch.x = torch.cat(batch.x)"),
    ],
)
def test_lists_that_the_batch_holds(tmp_path: Path, begin: str, put: str, joined: str) -> None:
    """Their joining had no finding, as the lists have no name of their own."""
    (tmp_path / "loader.py").write_text(textwrap.dedent(LOADER))
    text = textwrap.dedent(BATCH).format(begin=begin, put=put, joined=joined)
    (tmp_path / "batch.py").write_text(text)
    found = check_paths([tmp_path], Config(select=("XLA109",))).findings
    assert [text.splitlines()[f.line - 1].strip() for f in found] == [joined]
    one = text.replace(put, put.replace(")", "[None])"))
    (tmp_path / "batch.py").write_text(one)
    assert not check_paths([tmp_path], Config(select=("XLA109",))).findings

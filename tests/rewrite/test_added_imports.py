"""Names of the imports that rules add."""

from __future__ import annotations

from pathlib import Path

from migrate.catalogue.target import TPU
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse


def for_torch_tpu(script: str) -> str:
    options = RewriteOptions(config=Config(target=TPU))
    return rewrite_source(parse(script.encode(), Path("train.py")), options=options).data.decode()


def test_an_alias_of_another_module_keeps_its_name() -> None:
    done = for_torch_tpu(
        """
import multiprocessing as mp

import torch_xla

lock = mp.Manager().Lock()


def worker(index):
    print(index, lock)


if __name__ == "__main__":
    torch_xla.launch(worker)
"""
    )
    assert "import multiprocessing as mp\n" in done
    assert "import torch.multiprocessing as mp_\n" in done
    assert "mp_.spawn(worker, nprocs=nprocs)" in done
    assert "nprocs = torch.accelerator.device_count()" in done


def test_imports_stand_above_the_first_statement_that_needs_them() -> None:
    done = rewrite_source(
        parse(
            b"""
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_config(config)
model.to("cuda")

import torch
from torch.utils.data import DataLoader

x = torch.zeros(3).cuda()
""",
            Path("train.py"),
        )
    ).data.decode()
    above, _, _ = done.partition("set_swap_module_params_on_conversion(True)")
    assert "import torch\n" in above
    assert "import torch_xla\n" in above
    assert done.count("import torch_xla\n") == 1

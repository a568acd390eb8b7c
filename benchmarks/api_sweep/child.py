"""The part of the sweep that runs calls: on the CPU and on XLA, and prints what comes of each.

python child.py calls|operators|replicas START ONLY cpu|xla
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FILES = {"calls": "one_device.txt", "replicas": "replicas.txt"}
SAMPLES = 6
IMPORTS = """import copy
import io
import logging
import math
import os
import pickle

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
"""


def blocks(kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each call, what it needs before the training loop, and its statements in a step."""
    text = (FOLDER / FILES[kind]).read_text()
    for part in re.split(r"(?m)^#: ", text)[1:]:
        name, _, code = part.partition("\n")
        setup, cut, step = code.partition("---\n")
        yield name.strip(), setup if cut else "", step if cut else setup


def measured(setup: str, step: str, device: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Run a call in a process of its own kind of device, and return what it answers and what XLA did."""
    import torch

    xla = device.type == "xla"
    space: dict[str, Any] = {}
    exec(IMPORTS, space)
    torch.manual_seed(0)
    nn, functional = torch.nn, torch.nn.functional
    layers = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)
    model = nn.Sequential(*layers).to(device)
    generator = torch.Generator().manual_seed(1 + more.get("rank", 0))
    x = torch.randn(6, 8, generator=generator).to(device)
    y = torch.tensor([0, 1, 3, 2, 1, 3]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    space |= {"device": device, "model": model, "x": x, "y": y, "optimizer": optimizer, **more}
    exec(setup, space)
    space["loss"] = functional.cross_entropy(model(x), y)
    if xla:
        _settle()
    exec(step, space)
    did = _did() if xla else []
    return {"out": [_plain(part) for part in _flat(space.get("out"))], "did": did}


def _settle() -> None:
    """Wait until XLA has run all that is pending, and clear its counters."""
    import torch_xla
    from torch_xla.core import xla_model
    from torch_xla.debug import metrics

    torch_xla.sync(wait=True)
    xla_model.wait_device_ops()
    metrics.clear_all()


def _did() -> list[str]:
    """Return what ran on the CPU since then, and whether the host waited for a value."""
    from torch_xla.debug import metrics

    did = [name for name in metrics.counter_names() if name.startswith("aten::")]
    return did + ["waits"] * ("TransferFromDeviceTime" in metrics.metric_names())


def _flat(value: Any) -> list[Any]:
    from torch.utils._pytree import tree_flatten

    return list(tree_flatten(value)[0])


def _plain(value: Any) -> Any:
    """Return what is compared of a value, as JSON has it."""
    import torch

    if not isinstance(value, torch.Tensor):
        return repr(value)
    held = value.detach().cpu()
    held = torch.view_as_real(held) if held.is_complex() else held
    numbers = held.to_dense().double().flatten()[:200].tolist()
    return [str(value.dtype), list(value.shape), numbers]


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, list) or not isinstance(b, list):
        return bool(a == b)
    close = (
        p == q or p != p or abs(p - q) <= 1e-4 + 2e-3 * abs(p)
        for p, q in zip(a[2], b[2], strict=False)
    )
    return a[:2] == b[:2] and all(close)


def told(reference: dict[str, Any], found: dict[str, Any]) -> str:
    """Return what is otherwise on XLA; nothing where it is the same."""
    if "raises" in found:
        return "" if "raises" in reference else f"raises {found['raises']}"
    if "raises" in reference:
        return f"is silent where torch raises {reference['raises']}"
    pairs = zip(reference["out"], found["out"], strict=False)
    other = [f"gives {b} for {a}"[:160] for a, b in pairs if not _same(a, b)]
    return "; ".join([*other, *(f"runs {n}" if "::" in n else n for n in found.get("did", ()))])


def attempt(*args: Any) -> dict[str, Any]:
    """Return what `measured` does, or what it raises."""
    try:
        return measured(*args)
    except Exception as error:
        return {"raises": f"{type(error).__name__}: {str(error)[:120]}"}


def operators() -> Iterator[tuple[str, str, str]]:
    """Yield calls of torch's operators, with their samples in place of `x`."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in sorted(op_db, key=lambda one: (one.name, one.variant_test_name)):
        name = f"torch.{op.name} {op.variant_test_name}".strip()
        yield name, "", f"out = samples({op.name!r}, {op.variant_test_name!r}, device)"


def samples(name: str, variant: str, device: Any) -> list[Any]:
    """Return what an operator gives of each sample, and its gradients."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._pytree import tree_map_only

    op = next(one for one in op_db if (one.name, one.variant_test_name) == (name, variant))
    kinds = (torch.float32, torch.int64, torch.bool, torch.complex64)
    dtype = next(one for one in kinds if one in op.dtypes)
    found = []
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
        parts = (sample.input, sample.args, sample.kwargs)
        moved = tree_map_only(torch.Tensor, lambda t: t.detach().to(device), parts)
        if op.supports_autograd and dtype is torch.float32:
            _flat(moved[0])[0].requires_grad_()
        result = op(moved[0], *moved[1], **moved[2])
        found.append(result)
        leaves = [one for one in _flat(result) if getattr(one, "requires_grad", False)]
        if leaves and not leaves[0].is_complex():
            found += torch.autograd.grad(leaves[0].sum(), _flat(moved[0])[0], allow_unused=True)
    return found


def worker(index: int, kind: str, start: int, only: str, device_type: str) -> None:
    """Run calls in this process and print what comes of each; the first of two replicas prints."""
    warnings.simplefilter("ignore")
    import torch

    more: dict[str, Any] = {"samples": samples}
    if kind == "replicas":
        more |= _joined(index, device_type)
    else:
        import torch_xla  # noqa: F401

        torch.ones(1, device="xla", requires_grad=True).sum().backward()
    listed = operators() if kind == "operators" else blocks(kind)
    for number, (name, setup, step) in enumerate(listed):
        if number < start or only not in name:
            continue
        say = print if index == 0 else (lambda *args, **options: None)
        say(json.dumps({"start": number, "name": name}), flush=True)
        if kind == "replicas":
            answer: Any = attempt(setup, step, torch.device(device_type), more)
        else:
            reference = attempt(setup, step, torch.device("cpu"), more)
            answer = told(reference, attempt(setup, step, torch.device("xla"), more))
        say(json.dumps({"done": number, "name": name, "answer": answer}), flush=True)


def _joined(index: int, device_type: str) -> dict[str, Any]:
    """Join the two processes, and return what a call of several replicas needs."""
    import torch
    import torch.distributed as dist

    if device_type == "xla":
        import torch_xla.distributed.xla_backend  # noqa: F401

        dist.init_process_group("xla", init_method="xla://")
    else:
        address = f"tcp://127.0.0.1:{os.environ['SWEEP_PORT']}"
        dist.init_process_group("gloo", init_method=address, rank=index, world_size=2)

    def ddp(model: Any, **options: Any) -> Any:
        view = {"gradient_as_bucket_view": True} if device_type == "xla" else {}
        return torch.nn.parallel.DistributedDataParallel(model, **view | options)

    return {"rank": dist.get_rank(), "n": 2, "ddp": ddp, "dist": dist}


if __name__ == "__main__":
    chosen, first, text, where = sys.argv[1:]
    given = (chosen, int(first), text, where)
    if chosen != "replicas":
        worker(0, *given)
    elif where == "xla":
        import torch_xla

        torch_xla.launch(worker, args=given)
    else:
        import torch.multiprocessing

        torch.multiprocessing.spawn(worker, args=given, nprocs=2)

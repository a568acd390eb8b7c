"""Branches that only CUDA can run stay off on XLA."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Literal

import pytest

from migrate.rewrite.options import RewriteOptions
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.results import Rewrite
from migrate.syntax.source import parse

AROUND = """\
import torch


def main(model, device_type, device, args, fused_available):
    model.cuda()
{body}
"""


def run(body: str) -> Rewrite:
    text = AROUND.format(body=textwrap.indent(textwrap.dedent(body).strip(), "    "))
    return rewrite_source(parse(text.encode(), Path("script.py")))


@pytest.mark.parametrize(
    "body",
    [
        """
        if device_type == "cuda":
            print(torch.cuda.get_device_name(0))
        else:
            print("none")
        """,
        'peak = torch.cuda.max_memory_allocated if device_type == "cuda" else lambda: 0',
        """
        if args.log and device_type == "cuda":
            print(torch.cuda.memory_stats())
        """,
        """
        if device_type != "cuda":
            print("no fp8")
        else:
            from kernels import convert_fp8
            convert_fp8(model)
        """,
        """
        use_fused = fused_available and device_type == 'cuda'
        extra = dict(fused=True) if use_fused else dict()
        print(f"fused: {use_fused}")
        """,
        """
        use_cuda = device == "cuda"
        buffer = torch.empty(3, pin_memory=use_cuda)
        out = torch.empty(3, device=device).copy_(buffer, non_blocking=use_cuda)
        """,
        'loader = make(pin_memory=device_type == "cuda")',
        'print(f"{torch.cuda.memory_reserved() / 1e9 if torch.cuda.is_available() else 0:.3g}G")',
    ],
)
def test_what_only_cuda_can_do_stays_off(body: str) -> None:
    done = run(body)
    assert textwrap.indent(textwrap.dedent(body).strip(), "    ") in done.data.decode()
    assert done.findings == ()


@pytest.mark.parametrize(
    "body",
    [
        'if device_type == "cuda":\n    model.cuda()\n    print(torch.cuda.get_device_name(0))',
        'if device_type == "cuda":\n    torch.cuda.manual_seed(3)',
        'use_cuda = device == "cuda"\nif use_cuda:\n    print("fast")\n    model.train()',
    ],
)
def test_what_a_training_needs_is_switched_on(body: str) -> None:
    assert '== "xla"' in run(body).data.decode()


def test_a_branch_that_waits_is_switched_on() -> None:
    """What waits for the device waits on XLA too, whatever memory is asked for beside it."""
    done = run(
        """
        if device.type == "cuda": torch.cuda.synchronize()
        if device.type == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.memory_summary(device)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        """
    )
    after = done.data.decode()
    assert 'if device.type == "xla": torch_xla.sync(wait=True)\n' in after
    assert 'if device.type == "xla":\n        torch_xla.sync(wait=True)\n' in after
    assert after.endswith("(device)\n    torch_xla.sync(wait=True)\n")
    assert [note.rule for note in done.findings] == ["cuda-memory"]


def test_what_was_asked_for_a_fused_optimizer_stays_off_when_that_is_gone() -> None:
    done = run(
        """
        use_fused = fused_available and device_type == "cuda"
        print(f"fused: {use_fused}")
        return torch.optim.AdamW(model.parameters(), fused=use_fused)
        """
    )
    after = done.data.decode()
    assert 'use_fused = fused_available and device_type == "cuda"\n' in after
    assert after.endswith("AdamW(model.parameters())\n")


def test_a_function_that_waits_is_left_to_do() -> None:
    done = run('wait = torch.cuda.synchronize if device_type == "cuda" else lambda: None')
    assert 'if device_type == "cuda"' in done.data.decode()
    assert [note.message for note in done.findings] == [
        "torch.cuda.synchronize: raises on XLA: torch_xla.sync(wait=True)"
    ]


def test_an_extension_for_cuda_is_not_built() -> None:
    done = run(
        """
        from torch.utils.cpp_extension import CppExtension, CUDAExtension

        if torch.cuda.is_available() or args.force:
            made = CUDAExtension
        else:
            made = CppExtension
        """
    )
    assert b"if torch.cuda.is_available() or args.force:\n        made = CUDA" in done.data


def test_a_branch_that_is_skipped_and_chooses_the_device_is_named() -> None:
    """YOLO's select_device: it was said that only figures are skipped."""
    done = run(
        """
        if not args.cpu and torch.cuda.is_available():
            print(torch.cuda.get_device_properties(0))
            chosen = "cuda:0"
        """
    )
    assert any(
        "the device that is chosen below it is not taken" in n.message for n in done.findings
    )


def test_kernels_that_are_built_where_cuda_is_stay_unbuilt() -> None:
    """semseg: `load` of a .cu file was taken out of its test."""
    built = (
        "if torch.cuda.is_available():\n"
        "    gpu = torch.utils.cpp_extension.load('mask_gpu', ['mask.cu'])\n"
    )
    assert textwrap.indent(built, "    ") in run(built).data.decode()


FUNCTION = """\
import torch


def ready(rank, model):
{body}


def use(x):
    return x.cuda() if ready(0, None) else x
"""


def run_function(body: str, style: Literal["native", "portable"] = "native") -> Rewrite:
    text = FUNCTION.format(body=textwrap.indent(textwrap.dedent(body).strip(), "    "))
    return rewrite_source(
        parse(text.encode(), Path("script.py")), options=RewriteOptions(style=style)
    )


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "body",
    [
        """
        if not torch.cuda.is_available():
            return False
        name = torch.cuda.get_device_name(0).lower()
        return "h100" in name or "hopper" in name
        """,
        """
        if not torch.cuda.is_available():
            return 0
        return torch.cuda.memory_reserved() // 2**20
        """,
        """
        if rank is None or not torch.cuda.is_available():
            return False
        major, _ = torch.cuda.get_device_capability()
        return major >= 9
        """,
        """
        if not torch.cuda.is_available():
            return False
        else:
            return torch.cuda.get_device_capability() >= (8, 0)
        """,
        """
        if not torch.cuda.is_available():
            return None
        import triton

        return triton
        """,
        """
        for index in range(2):
            if not torch.cuda.is_available():
                continue
            print(torch.cuda.get_device_properties(index))
        """,
        """
        available = torch.cuda.is_available()
        if not available:
            return 0
        return torch.cuda.mem_get_info()[0]
        """,
        """
        usable = torch.cuda.is_available()
        if usable:
            return torch.cuda.get_device_capability()
        return None
        """,
        """
        ok = torch.cuda.is_available()
        return torch.cuda.get_device_properties(rank).total_memory if ok else 0
        """,
        """
        ok = torch.cuda.is_available()
        return ok and torch.cuda.get_device_capability()[0] >= 9
        """,
        "return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9",
        "return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < 8",
    ],
)
def test_a_function_that_goes_on_only_with_cuda_keeps_its_guard(
    body: str, style: Literal["native", "portable"]
) -> None:
    done = run_function(body, style)
    assert textwrap.indent(textwrap.dedent(body).strip(), "    ") in done.data.decode()
    assert done.findings == ()


@pytest.mark.parametrize(
    "body",
    [
        """
        if not torch.cuda.is_available():
            return model
        print(torch.cuda.get_device_name(0))
        return model.cuda()
        """,
        """
        if not torch.cuda.is_available():
            return torch.device("cpu")
        torch.cuda.set_device(rank)
        return torch.device("cuda", rank)
        """,
        """
        if not torch.cuda.is_available():
            return 0
        return torch.cuda.device_count()
        """,
        """
        if not torch.cuda.is_available():
            raise RuntimeError("needs a GPU")
        print(torch.cuda.get_device_name(0))
        """,
        """
        if not torch.cuda.is_available():
            return
        torch.cuda.synchronize()
        """,
        """
        available = torch.cuda.is_available()
        if not available:
            return 0
        return torch.cuda.device_count()
        """,
        """
        available = torch.cuda.is_available()
        if available:
            print(torch.cuda.get_device_name(0))
        return model.cuda() if available else model
        """,
    ],
)
def test_a_guard_goes_where_a_tpu_can_go_on(body: str) -> None:
    assert "is_available" not in run_function(body).data.decode()


PINNING = """\
import threading

import torch
from torch.utils.data import _utils


class Batches:
    def __init__(self, loader, out):
        self._pin_memory = {condition}
        self.model = torch.nn.Linear(2, 2).cuda()
        if self._pin_memory:
            current_device = torch.cuda.current_device()
            threading.Thread(
                target=_utils.pin_memory._pin_memory_loop, args=(out, out, current_device, None, None)
            ).start()
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "condition",
    [
        "loader.pin_memory and torch.cuda.is_available()",
        "torch.cuda.is_available() and loader.pinned_memory",
        "loader.fast and torch.cuda.is_available()",
        "loader.pin_memory and loader.fast and torch.cuda.is_available()",
    ],
)
def test_what_decides_about_pinned_memory_stays_off(
    condition: str, style: Literal["native", "portable"]
) -> None:
    text = PINNING.format(condition=condition)
    rewrite = rewrite_source(
        parse(text.encode(), Path("batches.py")), options=RewriteOptions(style=style)
    )
    after = rewrite.data.decode()
    assert f"self._pin_memory = {condition}" in after
    assert "current_device = torch.cuda.current_device()" in after
    assert ".cuda()" not in after


def test_a_flag_that_says_where_batches_go_does_not_stay_off() -> None:
    text = PINNING.format(condition="loader.fast and torch.cuda.is_available()")
    text += "            self.batch = loader.batch.cuda()\n"
    after = rewrite_source(parse(text.encode(), Path("batches.py"))).data.decode()
    assert "self._pin_memory = loader.fast\n" in after


def test_a_flag_of_the_base_class_stays_off_in_the_loader_below_it() -> None:
    text = PINNING.format(condition="loader.pin_memory and torch.cuda.is_available()")
    text = text.replace(
        "        if self._pin_memory:",
        "\n\nclass Parallel(Batches):\n    def start(self, out):\n        if self._pin_memory:",
    )
    after = rewrite_source(parse(text.encode(), Path("batches.py"))).data.decode()
    assert "current_device = torch.cuda.current_device()" in after


GOES_ON = """\
import torch


class Fast:
    def __init__(self, device):
        self.device = device

    def __enter__(self):
        if self.device == "cuda":
            self.before = torch.backends.cuda.matmul.allow_tf32
            if torch.cuda.get_device_properties(0).major >= 8:
                torch.backends.cuda.matmul.allow_tf32 = True

    def __exit__(self, *_):
        if self.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = self.before


def refine(model, device="cuda"):
    model.to(device)
    if device == "cuda":
        before = torch.backends.cuda.matmul.allow_tf32
        if torch.cuda.get_device_properties(0).major >= 8:
            torch.backends.cuda.matmul.allow_tf32 = True
    try:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        print(model(dtype))
    finally:
        if device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = before


def measure(model, device="cuda"):
    kind = torch.device(device).type
    if kind == "cuda":
        start, _ = torch.cuda.mem_get_info()
    model.to(device)
    if kind != "cuda":
        return
    else:
        print(start)
"""


@pytest.mark.parametrize("style", ["native", "portable"])
def test_what_goes_on_with_values_of_a_skipped_branch_is_skipped(
    style: Literal["native", "portable"],
) -> None:
    rewrite = rewrite_source(
        parse(GOES_ON.encode(), Path("refine.py")), options=RewriteOptions(style=style)
    )
    after = rewrite.data.decode()
    assert after.count('if self.device == "cuda":') == 2
    assert after.count('if device == "cuda":') == 2
    assert 'if kind == "cuda":' in after
    assert 'if kind != "cuda":' in after
    assert ('if device == "xla" else torch.float32' in after) is (style == "native")


def test_what_is_bound_elsewhere_too_is_asked_for_xla() -> None:
    text = GOES_ON.replace(
        "    model.to(device)\n    if device",
        "    model.to(device)\n    before = False\n    if device",
        1,
    )
    after = rewrite_source(parse(text.encode(), Path("refine.py"))).data.decode()
    assert after.count('if device == "xla":') == 1

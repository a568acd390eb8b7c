import subprocess
import sys
from pathlib import Path

import torch
from torch.nn import functional

from shims.patches import half
from tests.waiting import LIMIT


def gradients(convolve, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(2, 3, 9, 7, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(4, 3, 3, 2, generator=generator).to(dtype).requires_grad_()
    bias = torch.randn(4, generator=generator).to(dtype).requires_grad_()
    result = convolve(value, weight, bias, stride=2, padding=1)
    (
        result * torch.linspace(-1, 1, result.numel()).reshape(result.shape).to(dtype)
    ).sum().backward()
    return result, value.grad, weight.grad, bias.grad


def test_a_convolution_in_float16_is_that_of_torch() -> None:
    ours = gradients(half.kernels()[functional.conv2d], torch.float16)
    # torch's own float16 kernels round the sums of the backward pass.
    for mine, theirs in zip(ours, gradients(functional.conv2d, torch.float16), strict=True):
        assert mine.dtype == theirs.dtype == torch.float16
        assert torch.allclose(mine, theirs, rtol=4e-3, atol=4e-3)


def test_autocast_rounds_the_arguments_and_keeps_float32_gradients() -> None:
    weight = torch.full((1, 1, 1), 1 + 2**-12, requires_grad=True)
    value = torch.full((1, 1, 1), 1.0)
    with torch.autocast("cpu", torch.float16):
        result = half.kernels()[functional.conv1d](value, weight)
    result.sum().backward()
    assert result.dtype == torch.float16
    assert result.item() == 1.0
    assert weight.grad.dtype == torch.float32


def test_other_types_are_torchs_own() -> None:
    ours = gradients(half.kernels()[functional.conv2d], torch.float32)
    for mine, theirs in zip(ours, gradients(functional.conv2d, torch.float32), strict=True):
        assert torch.equal(mine, theirs)


def test_programs_on_a_cuda_device_use_it(tmp_path: Path) -> None:
    source = """
import torch
torch.manual_seed(0)
layer = torch.nn.Conv2d(64, 64, 3, padding=1).cuda()
with torch.amp.autocast("cuda"):
    result = layer(torch.randn(2, 64, 56, 56).cuda())
assert result.is_cuda and result.dtype == torch.float16
names, node = [], result.grad_fn
while node is not None:
    names.append(node.name())
    node = node.next_functions[0][0] if node.next_functions else None
assert names[:2] == ["ToCopyBackward0", "ConvolutionBackward0"], names
"""
    script = tmp_path / "train.py"
    script.write_text(source)
    command = [sys.executable, "-m", "shims", "--ranks=1", "--backend=cpu", str(script)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr

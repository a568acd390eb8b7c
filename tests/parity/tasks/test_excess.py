"""Which roundings excess precision leaves out: read from HLO, and asked of the real TPU compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from migrate.compiler.compile import compile_for_tpu
from migrate.compiler.program import CompilerProgram, program_of_jax
from migrate.parity.tasks.excess import FLAG, Rounding, excess_section, find_excess, left_out

needs_libtpu = pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu is not installed")

HEAD = """HloModule jit_f, is_scheduled=true

FileNames
1 "/home/user/model.py"
2 "/venv/site-packages/torch/nn/modules/linear.py"

FunctionNames
1 "forward"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=0 end_column=0}
2 {file_name_id=2 function_name_id=1 line=134 end_line=134 column=0 end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}


%fused (p: bf16[4,8]) -> bf16[4,8] {
  %p = bf16[4,8]{1,0:T(4,128)} parameter(0)
  %a.1 = f32[4,8]{1,0} add(%p, %p), metadata={op_name="aten__addmm" stack_frame_id=2}
"""
TAIL = """  ROOT %c = bf16[4,8]{1,0} convert(%r)
}
"""
ROUNDING = "  %r = f32[4,8]{1,0} reduce-precision(%a.1), exponent_bits=8, mantissa_bits=7\n"


def test_a_rounding_that_is_left_out_has_its_operation_and_the_users_line() -> None:
    found = left_out(HEAD + TAIL, HEAD + ROUNDING + TAIL)
    assert found == (Rounding("aten__addmm", "add", (4, 8), "/home/user/model.py:12", 1),)
    assert str(found[0]) == "aten__addmm: add [4,8], /home/user/model.py:12"


def test_a_rounding_of_the_model_itself_is_in_both_and_not_left_out() -> None:
    twice = HEAD + ROUNDING + ROUNDING.replace("%r", "%r.1") + TAIL
    assert left_out(HEAD + ROUNDING + TAIL, HEAD + ROUNDING + TAIL) == ()
    (one,) = left_out(HEAD + ROUNDING + TAIL, twice)
    assert one.count == 1


def test_the_operand_is_looked_up_in_its_own_computation() -> None:
    other = "\n%other (p: f32[2]) -> f32[2] {\n  %a.1 = f32[2]{0} negate(%p)\n}\n"
    assert left_out(HEAD + TAIL + other, HEAD + ROUNDING + TAIL + other)[0].hlo == "add"


def gate(x: jax.Array, w: jax.Array) -> jax.Array:
    y = x @ w
    return y * jax.nn.sigmoid(y)


def gate_in(dtype: jnp.dtype) -> CompilerProgram:
    return program_of_jax(gate, *[jax.ShapeDtypeStruct((64, 64), dtype)] * 2)


@needs_libtpu
def test_the_tpu_compiler_leaves_roundings_out_of_a_bfloat16_function() -> None:
    section = excess_section(excess := find_excess(gate_in(jnp.bfloat16)))
    assert not excess.undetermined, excess.undetermined
    assert not section.passed
    assert section.checks[0].b is not None
    assert section.checks[0].b >= 3
    line = gate.__code__.co_firstlineno + 2
    assert any(one.source == f"{__file__}:{line}" for one in excess.roundings)
    assert {one.shape for one in excess.roundings} == {(64, 64)}
    assert "libtpu" in excess.compiler


@needs_libtpu
def test_a_float32_function_has_nothing_to_leave_out() -> None:
    excess = find_excess(gate_in(jnp.float32))
    assert (excess.roundings, excess.undetermined) == ((), "")
    assert excess_section(excess).passed


@needs_libtpu
@pytest.mark.parametrize(
    ("program", "timeout", "words"),
    [
        (CompilerProgram("slow", "stablehlo", b""), 0.05, "no answer in 0.05 s"),
        (CompilerProgram("broken", "stablehlo", b"garbage"), 60, "ended with 1"),
    ],
)
def test_no_answer_is_undetermined_and_does_not_pass(
    program: CompilerProgram, timeout: float, words: str
) -> None:
    excess = find_excess(program, timeout=timeout)
    assert words in excess.undetermined
    section = excess_section(excess)
    assert not section.passed
    assert section.checks[0].note == "undetermined"


@needs_libtpu
def test_what_the_compiler_refuses_is_told() -> None:
    def unknown(x: jax.Array) -> jax.Array:
        return jax.lax.dot(x, x, precision="F32_F32_F32")

    program = program_of_jax(unknown, jax.ShapeDtypeStruct((64, 64), jnp.float32))
    assert "not supported" in compile_for_tpu(program, [{FLAG: True}]).undetermined


TORCH = """
import sys
import torch
from torch import nn
from migrate.compiler.program import program_of_torch
from migrate.parity.tasks.excess import find_excess

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        return nn.functional.silu(self.linear(x))

excess = find_excess(program_of_torch(Gate().bfloat16(), [torch.randn(4, 16).bfloat16()]))
for one in excess.roundings:
    print(one)
print(excess.undetermined or "known")
"""


@needs_libtpu
@pytest.mark.xla
@pytest.mark.long
def test_a_torch_module_goes_through_torch_xla_to_the_tpu_compiler(tmp_path: Path) -> None:
    script = tmp_path / "gate.py"
    script.write_text(TORCH)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("known\n"), done.stdout + done.stderr
    assert f"aten__silu: logistic [4,32], {script}:14" in done.stdout
    assert f"aten__addmm: add [4,32], {script}:14" in done.stdout

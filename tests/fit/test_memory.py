"""What lies in HBM, by a schedule: what shares memory counts once, and what is donated too."""

from __future__ import annotations

import pytest

from migrate.compiler.hlo import HloModule
from migrate.fit.memory import memory_of
from migrate.fit.products import product_named
from migrate.fit.verdict import FitVerdict

MB = 1 << 20
A = "f32[256,1024]{1,0:T(8,128)}"  # 1 MB


def of(body: str, head: str = "") -> HloModule:
    return HloModule(
        f"HloModule m, is_scheduled=true{head}\n\nENTRY %main () -> f32[] {{\n{body}}}\n"
    )


def test_a_temporary_is_there_until_it_is_read_for_the_last_time() -> None:
    module = of(
        f"""  %p = {A} parameter(0)
  %a = {A} fusion(%p), calls=%x
  %b = {A} fusion(%a), calls=%x
  %c = {A} fusion(%b), calls=%x
  ROOT %d = {A} fusion(%c, %a), calls=%x
"""
    )
    found = memory_of(module)
    assert (found.arguments, found.outputs) == (MB, MB)
    # p and the output all the time, a until the end; b lies where the output will be, c beside it.
    assert [size // MB for size in found.curve] == [2, 3, 3, 4, 4]
    assert found.peak == 4 * MB
    assert [one.kind for one in found.at_peak].count("temporary") == 2


def test_an_input_that_nobody_named_has_no_name() -> None:
    node = 'metadata={op_type="xla__device_data" op_name="xla__device_data"}'
    named = 'metadata={op_name="batch"}'
    module = of(
        f"""  %p = {A} parameter(0), {node}
  %q = {A} parameter(1), {named}
  ROOT %d = {A} fusion(%p, %q), calls=%x
"""
    )
    names = {
        held.number: held.name for held in memory_of(module).at_peak if held.kind == "argument"
    }
    assert names == {0: "", 1: "batch"}


def test_what_is_another_name_takes_nothing() -> None:
    module = of(
        f"""  %p = {A} parameter(0)
  %a = {A} fusion(%p), calls=%x
  %t = ({A}, {A}) tuple(%a, %p)
  %g = {A} get-tuple-element(%t), index=0
  %v = f32[1024,256]{{1,0:T(8,128)}} bitcast(%g)
  %s = ({A[:-1]}S(1)}}, {A}, u32[]{{:S(2)}}) copy-start(%v)
  %d = {A[:-1]}S(1)}} copy-done(%s)
  ROOT %r = f32[]{{:T(128)}} fusion(%d), calls=%x
"""
    )
    found = memory_of(module)
    assert found.peak == 2 * MB + 512  # p and a; the copy is in VMEM
    assert max(found.curve) == max(size for _, size in found.thinned) == found.peak


def test_donated_arguments_and_in_place_updates_count_once() -> None:
    aliased = 'backend_config={"aliasing_operands":{"lists":[{"indices":["1","2"]}]}}'
    module = of(
        f"""  %p = {A} parameter(0)
  %g = {A} fusion(%p), calls=%x
  %new = {A} fusion(%g, %p), calls=%x, {aliased}
  ROOT %t = ({A}) tuple(%new)
""",
        ", input_output_alias={ {0}: (0, {}, may-alias) }",
    )
    found = memory_of(module)
    assert found.outputs == 0
    assert found.peak == 2 * MB


def test_a_loop_works_in_place_and_needs_what_its_body_does() -> None:
    text = f"""HloModule m, is_scheduled=true

%body (p: f32[]) -> f32[] {{
  %p = ({A}) parameter(0)
  %g = {A} get-tuple-element(%p), index=0
  %a = {A} fusion(%g), calls=%x
  %b = {A} fusion(%a, %g), calls=%x
  ROOT %t = ({A}) tuple(%b)
}}

ENTRY %main () -> f32[] {{
  %q = {A} parameter(0)
  %c = {A} copy(%q)
  %s = ({A}) tuple(%c)
  %w = ({A}) while(%s), condition=%cond, body=%body
  %r = {A} get-tuple-element(%w), index=0
  ROOT %o = f32[]{{:T(128)}} fusion(%r), calls=%x
}}
"""
    found = memory_of(HloModule(text))
    assert found.peak == 3 * MB + 512  # q, its copy that the loop turns over, and the body's own
    assert any(one.name == "fusion" for one in found.at_peak)


def test_an_exchange_in_place() -> None:
    module = of(
        f"""  %p = {A} parameter(0)
  %g = {A} fusion(%p), calls=%x
  %r = {A} all-reduce(%g), replica_groups={{}}
  ROOT %o = f32[]{{:T(128)}} fusion(%r), calls=%x
"""
    )
    assert memory_of(module).peak == 2 * MB + 512


def test_nothing_of_a_text_without_a_program() -> None:
    assert memory_of(HloModule("")).peak == 0


STACK = """
FileNames
1 "/home/user/train.py"
2 "/x/site-packages/torch/optim/adamw.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}
2 {file_name_id=2 function_name_id=1 line=9 end_line=9 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

"""


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        (
            'op_name="jit(step)/jvp(Net)/dot_general"',
            'op_name="jit(step)/transpose(jvp(Net))/dot_general"',
            'op_name="jit(step)/mul"',
        ),
        (
            'op_name="aten__mm" stack_frame_id=1',
            'op_name="aten__mm"',
            'op_name="aten__mul" stack_frame_id=2',
        ),
    ],
    ids=["JAX", "torch"],
)
def test_temporaries_are_told_apart_by_the_pass_that_made_them(
    first: str, second: str, third: str
) -> None:
    kept = "f32[512,1024]{1,0:T(8,128)}"  # 2 MB
    body = f"""  %w = {A} parameter(0)
  %a = {kept} fusion(%w), calls=%x, metadata={{{first}}}
  %g = {A} fusion(%a), calls=%x, metadata={{{second}}}
  %d = {kept} fusion(%a), calls=%x, metadata={{{second}}}
  %o = {A} fusion(%g, %d), calls=%x, metadata={{{third}}}
  ROOT %t = f32[]{{:T(128)}} fusion(%a, %g, %d, %o), calls=%x
"""
    module = of(body, STACK)
    known = FitVerdict(
        product_named("v5e-1"),
        "fits",
        memory=memory_of(module),
        roles=(("parameter", "weight"),),
        trains=True,
    )
    assert dict(known.by_kind()) == {
        "parameters": MB,
        "activations": 2 * MB,
        "gradients": MB,  # in the shape of the weight
        "temporaries": 3 * MB,  # the gradient of what was kept, and the optimizer's
        "outputs": 512,
    }

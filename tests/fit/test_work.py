"""Multiplications, bytes and exchanges of a compiled program, held against numbers made by hand."""

from __future__ import annotations

import pytest

from migrate.compiler.hlo import HloModule
from migrate.fit.work import collectives_of, counted_once, work_of

F = "{1,0:T(8,128)}"


def of(body: str, before: str = "") -> HloModule:
    return HloModule(
        f"HloModule m, is_scheduled=true\n\n{before}ENTRY %main () -> f32[] {{\n{body}}}\n"
    )


def convolution(left: str, right: str, made: str, rest: str) -> HloModule:
    return of(
        f"""  %l = {left} parameter(0)
  %r = {right} parameter(1)
  ROOT %c = {made} convolution(%l, %r), {rest}
"""
    )


@pytest.mark.parametrize(
    ("left", "right", "made", "rest", "flops", "sides"),
    [
        # A product.
        ("f32[32,64]", "f32[64,16]", "f32[32,16]", "dim_labels=bf_io->bf", 65536, (32, 16, 64)),
        # 3×3 with padding: the corners meet four of nine.
        (
            "f32[2,8,8,3]",
            "f32[3,3,3,16]",
            "f32[2,8,8,16]",
            "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
            2 * 2 * 3 * 16 * 22 * 22,
            (128, 16, 3 * 7),
        ),
        # Depthwise.
        (
            "f32[2,8,8,32]",
            "f32[1,1,1,32]",
            "f32[2,8,8,32]",
            "window={size=1x1}, dim_labels=b01f_01io->b01f, feature_group_count=32",
            2 * 2 * 64 * 32,
            (128, 1, 1),
        ),
        # Four products at once, as a TPU's compiler writes them.
        (
            "f32[4,8,16]",
            "f32[4,16,8]",
            "f32[4,8,8]",
            "window={size=4 stride=3 pad=0_0 lhs_dilate=4 rhs_reversal=0_0}, dim_labels=0bf_0io->0bf",
            None,
            None,
        ),
    ],
)
def test_multiplications(
    left: str,
    right: str,
    made: str,
    rest: str,
    flops: float | None,
    sides: tuple[int, int, int] | None,
) -> None:
    (work,) = work_of(convolution(left, right, made, rest))
    (product,) = work.products
    if flops is None:
        assert product.flops <= 2 * 4 * 8 * 8 * 16  # each window meets one element at most
        return
    assert product.flops == flops
    assert (product.rows, product.columns, product.depth) == sides


def test_exact_products_take_six_passes_of_float32_only() -> None:
    rest = "dim_labels=bf_io->bf, operand_precision={highest,highest}"
    (exact,) = work_of(convolution("f32[8,8]", "f32[8,8]", "f32[8,8]", rest))
    (plain,) = work_of(convolution("bf16[8,8]", "bf16[8,8]", "bf16[8,8]", rest))
    assert exact.flops == 6 * plain.flops == 6 * 1024


def test_what_is_computed_again_is_told() -> None:
    body = """%again (p: f32[]) -> f32[] {
  %p = f32[32,64] parameter(0)
  %q = f32[64,16] parameter(1)
  ROOT %c.remat = f32[32,16] convolution(%p, %q), dim_labels=bf_io->bf
}

"""
    run = """  %l = f32[32,64] parameter(0)
  %r = f32[64,16] parameter(1)
  %first = f32[32,16] convolution(%l, %r), dim_labels=bf_io->bf
  ROOT %f = f32[32,16] fusion(%l, %r), calls=%again
"""
    first, again = work_of(of(run, body))
    assert (first.flops, first.again) == (65536, 0)
    assert again.flops == again.again == 65536


def test_a_loop_counts_its_turns_and_slices_what_they_take() -> None:
    body = f"""%body (p: f32[]) -> f32[] {{
  %p = (f32[64,128]{F}) parameter(0)
  %g = f32[64,128]{F} get-tuple-element(%p), index=0
  %s = f32[8,128]{F} fusion(%g), calls=%cut
  ROOT %t = (f32[64,128]{F}) tuple(%g)
}}

%cut (q: f32[64,128]) -> f32[8,128] {{
  %q = f32[64,128]{F} parameter(0)
  ROOT %d = f32[8,128]{F} dynamic-slice(%q), dynamic_slice_sizes={{8,128}}
}}

"""
    turns = 'x={"known_trip_count":{"n":"5"}}'
    loop = f"""  %a = (f32[64,128]{F}) parameter(0)
  ROOT %w = (f32[64,128]{F}) while(%a), condition=%c, body=%body, {turns}
"""
    (work,) = work_of(of(loop, body))
    assert work.times == 5
    assert work.moved == 5 * (2 * 8 * 128 * 4)


@pytest.mark.parametrize(
    ("groups", "group"),
    [
        ("replica_groups={{0,1},{2,3}}", 2),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups={}", 8),
        ("replica_groups=mesh['data'=4,'model'=2] {'model'}", 2),
        ("replica_groups=mesh['data'=4,'model'=2] {'data','model'}", 8),
    ],
)
def test_who_exchanges_with_whom(groups: str, group: int) -> None:
    (found,) = collectives_of(
        of(
            f"""  %p = f32[1000] parameter(0)
  ROOT %r = f32[1000] all-reduce(%p), {groups}, to_apply=%add
"""
        ),
        8,
    )
    assert (found.kind, found.bytes, found.group, found.overlapped) == (
        "all-reduce",
        4000,
        group,
        False,
    )
    assert found.sent == pytest.approx(2 * 4000 * (group - 1) / group)


def test_an_exchange_with_work_in_between_is_overlapped() -> None:
    text = """  %p = f32[1000] parameter(0)
  %s = (f32[1000], f32[8000]) all-gather-start(%p), replica_groups=[1,8]<=[8], dimensions={0}
WORK  ROOT %d = f32[8000] all-gather-done(%s)
"""
    work = "  %f = f32[1000] fusion(%p), calls=%x\n"
    (hidden,) = collectives_of(of(text.replace("WORK", work)), 8)
    (exposed,) = collectives_of(of(text.replace("WORK", "")), 8)
    assert (hidden.overlapped, exposed.overlapped) == (True, False)
    assert hidden.sent == 4000 * 7


PART = """%part (i: f32[64,128]) -> f32[8,128] {
  %i = f32[64,128] parameter(0)
  %r = f32[64,128] all-reduce(%i), replica_groups={}, to_apply=%add
  %n = u32[] replica-id()
  ROOT %s = f32[8,128] dynamic-slice(%r, %n, %n), dynamic_slice_sizes={8,128}
}
"""
GATHERED = """%gathered (i: f32[8,128]) -> f32[64,128] {
  %z = f32[64,128] broadcast(%c), dimensions={}
  %i = f32[8,128] parameter(0)
  %n = u32[] replica-id()
  %u = f32[64,128] dynamic-update-slice(%z, %i, %n, %n)
  ROOT %r = f32[64,128] all-reduce(%u), replica_groups={}, to_apply=%add
}
"""


def test_an_all_reduce_in_two_fusions_sends_what_it_sends_alone() -> None:
    text = """  %p = f32[64,128] parameter(0)
  %f = f32[8,128] fusion(%p), kind=kCustom, calls=%part
  ROOT %g = f32[64,128] fusion(%f), kind=kCustom, calls=%gathered
"""
    first, second = collectives_of(of(text, PART + GATHERED), 8)
    assert (first.kind, second.kind) == ("reduce-scatter", "all-gather")
    assert first.sent + second.sent == pytest.approx(2 * 4 * 64 * 128 * 7 / 8)


def test_a_group_of_one_exchanges_nothing() -> None:
    text = (
        "  %p = f32[8] parameter(0)\n  ROOT %r = f32[8] all-reduce(%p), replica_groups={{0},{1}}\n"
    )
    assert list(collectives_of(of(text), 2)) == []


def test_a_loop_whose_turns_nobody_knows_is_told() -> None:
    body = f"""%body (a: f32[8,128]) -> f32[8,128] {{
  %a = f32[8,128]{F} parameter(0)
  ROOT %b = f32[8,128]{F} add(%a, %a)
}}

"""
    loop = f"""  %x = f32[8,128]{F} parameter(0)
  ROOT %w = f32[8,128]{F} while(%x), condition=%c, body=%body, metadata={{op_name="until"}}REST
"""
    assert list(counted_once(of(loop.replace("REST", ""), body))) == ["until"]
    known = loop.replace("REST", ', backend_config={"known_trip_count":{"n":"4"}}')
    assert list(counted_once(of(known, body))) == []


def test_the_products_of_a_kernel_are_its_own_estimate() -> None:
    """Attention that XLA has put into a kernel: heads of 64 leave a 128-wide unit idle."""
    shape = "f32[8,4,256,64]{3,2,1,0:T(8,128)}"
    kernel = f"""  %q = {shape} parameter(0)
  ROOT %k = {shape} custom-call(%q, %q, %q), custom_call_target="tpu_custom_call", \
backend_config={{"custom_call_config":{{"cost_estimate":{{"flops":"536870912"}}}}}}
"""
    (work,) = work_of(of(kernel))
    assert work.flops == 2 * 2 * 8 * 4 * 256 * 256 * 64
    assert [(one.rows, one.columns, one.depth) for one in work.products] == [
        (256, 256, 64),
        (256, 64, 256),
    ]

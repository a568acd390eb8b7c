from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.utils import _sync_params_and_buffers

import shims
from migrate.observe.divergences import divergence_remedy
from migrate.observe.graph_dump import DumpFrame, executions
from migrate.observe.graphs import (
    differences,
    in_16_bits,
    nearest,
    parse_node,
    with_places,
    without_places,
)
from migrate.observe.places import ExecutionCause, cause_of, is_the_users, users_frame

# As torch_xla 2.9 writes it, shortened.
DUMP = """[ScheduleSyncTensorsGraph]
TensorsGraphInfo:
  worker (/home/user/train.py:28)
  __call__ (/env/lib/python3.11/site-packages/torch_xla/_internal/pjrt.py:183)

Root Hashes: (175a3254a62b1ed3669cbbcd4677ffad)

## BEGIN_GRAPH
IR {
  %0 = s64[] prim::Constant(), location=worker@train.py:28, xla_shape=s64[]
  %1 = s64[5]{0} xla::device_data(), location=cross_entropy@functional.py:3458, xla_shape=s64[5]{0}
  %2 = pred[5]{0} aten::gt(%1, %0), location=worker@train.py:28, xla_shape=pred[5]{0}, ROOT=0
}

Graph Hash: b325df00e4da5f3c15efae7ddf78e059

## END_GRAPH

[ScheduleSyncTensorsGraph]
TensorsGraphInfo:
  worker (/home/user/train.py:30)
"""


def node(op: str, shape: str, rest: str = "location=f@train.py:3") -> str:
    return f"%0 = {shape}{{0}} {op}(%1), {rest}, xla_shape={shape}{{0}}"


def test_an_execution_is_read_and_a_torn_entry_left_out() -> None:
    (one,) = executions(DUMP)
    assert one.graph == "b325df00e4da5f3c15efae7ddf78e059"
    assert one.frames[0] == DumpFrame("worker", "/home/user/train.py", 28)
    assert len(one.frames) == 2
    parsed = [parse_node(text) for text in one.nodes]
    assert [(n.op, n.shape, n.place) for n in parsed if n] == [
        ("prim::Constant", "s64[]", "train.py:28"),
        ("xla::device_data", "s64[5]", "functional.py:3458"),
        ("aten::gt", "pred[5]", "train.py:28"),
    ]


class TestWhatDiffers:
    def test_casts_of_the_simulation_are_no_change_of_the_script(self) -> None:
        place = "location=_wide@half_sums.py:122"
        sides = [
            [node("xla::cast", f"f32[{rows},4]", place), node("aten::relu", f"bf16[{rows},4]")]
            for rows in (8, 5)
        ]
        assert differences(*sides) == (
            "the shape of aten::relu: bf16[8,4] → bf16[5,4] (train.py:3)",
        )

    def test_a_line_of_the_simulation_is_no_place_of_the_script(self) -> None:
        source = (Path(shims.__file__).parent / "_simulated" / "reads.py").read_text()
        inside = source[: source.index("def watch_reads(")].count("\n") + 2
        for line in (inside, 9999):
            sides = [
                [node("xla::device_data", f"s64[16,{n}]", f"location=watch_reads@reads.py:{line}")]
                for n in (30, 32)
            ]
            place = " (reads.py:9999)" if line == 9999 else ""
            (said,) = differences(*sides)
            assert said == f"the shape of an input: s64[16,30] → s64[16,32]{place}"
            assert "batches of the same shape" in divergence_remedy([said])
        assert "the same computation" in divergence_remedy(["1 more: aten::add"])

    def test_the_shape_of_an_input_and_not_all_that_follows_from_it(self) -> None:
        before = [node("xla::device_data", "f32[8,4]"), node("aten::relu", "f32[8,4]")]
        after = [node("xla::device_data", "f32[5,4]"), node("aten::relu", "f32[5,4]")]
        (said,) = differences(before, after)
        assert said == "the shape of an input: f32[8,4] → f32[5,4] (train.py:3)"

    def test_the_shape_of_an_input_of_a_loop_that_is_unrolled_over_it(self) -> None:
        def unrolled(length: int) -> list[str]:
            states = [node("xla::device_data", "s64[4,32]")] * length
            return [node("xla::device_data", f"f32[4,{length},20]"), *states]

        (said,) = differences(unrolled(3), unrolled(2))
        assert said == "the shape of an input: f32[4,3,20] → f32[4,2,20] (train.py:3)"
        several = [*unrolled(2), node("xla::device_data", "f32[4,9,20]")]
        assert not any("an input:" in said for said in differences(unrolled(3), several))
        other = [node("xla::device_data", "f32[5,2,20]"), *unrolled(2)[1:]]
        assert not any("an input:" in said for said in differences(unrolled(3), other))

    def test_an_attribute(self) -> None:
        rest = "dim=0, start={}, end=9, location=f@train.py:7"
        before = [node("xla::select", "f32[3]", rest.format(1))]
        after = [node("xla::select", "f32[3]", rest.format(2))]
        assert differences(before, after) == ("start of xla::select: 1 → 2 (train.py:7)",)

    def test_operations_that_came(self) -> None:
        before = [node("aten::relu", "f32[3]")]
        after = [*before, node("aten::mul", "f32[3]", "location=f@train.py:9")]
        assert differences(before, after) == ("1 more: aten::mul (train.py:9)",)

    def test_a_slice_whose_position_is_not_shown(self) -> None:
        nodes = [node("xla::select", "f32[3]", "location=f@train.py:7")]
        assert differences(nodes, nodes) == (
            "the value of a constant, or the position of a slice (a Python number that became part of "
            "the graph, at train.py:7)",
        )

    @pytest.mark.parametrize("function", [torch.optim.Adam.step, _sync_params_and_buffers])
    def test_a_line_of_torch_is_not_named(self, function: Callable[..., Any]) -> None:
        """A `utils.py:321` of torch would look like a line of the user's `utils.py`."""
        code = inspect.unwrap(function).__code__
        file, line = Path(code.co_filename).name, code.co_firstlineno + 2
        before = [node("aten::relu", "f32[3]")]
        place = f"location={code.co_name}@{file}:{line}"
        after = [*before, node("aten::mul", "f32[3]", place)]
        assert differences(before, after) == ("1 more: aten::mul",)

    def test_the_most_similar_graph_is_the_one_to_compare_with(self) -> None:
        update = [node("aten::relu", "f32[3]"), *[node("aten::mul", "f32[3]")] * 4]
        micro = [node("aten::relu", "f32[3]")]
        with_state = [*update, node("aten::addcmul", "f32[3]")]
        assert nearest([update, micro], with_state) is update
        assert nearest([update, micro], [*micro, node("aten::neg", "f32[3]")]) is micro
        twice = [micro, list(micro)]
        assert nearest(twice, micro) is twice[1]

    def test_lines_of_torch_are_left_out_and_other_inputs_are_no_changed_shape(self) -> None:
        lines, first = inspect.getsourcelines(torch.nn.Linear.forward)
        of_torch = f"location=forward@linear.py:{first + len(lines) - 1}"
        relu = node("aten::relu", "f32[3]", of_torch)
        assert differences([], [relu, relu]) == ("2 more: aten::relu",)
        own = node("aten::relu", "f32[3]", "location=forward@train.py:3")
        assert differences([], [own]) == ("1 more: aten::relu (train.py:3)",)
        before = [node("xla::device_data", "s64[1]")]
        after = [node("xla::device_data", "f32[8,64]"), own]
        assert not any("→" in said for said in differences([*before, own, own], after))
        short = differences(
            [node("xla::device_data", "f32[8,4]")], [node("xla::device_data", "f32[5,4]", of_torch)]
        )
        assert short == ("the shape of an input: f32[8,4] → f32[5,4]",)

    def test_many_are_counted_and_a_constant_is_what_remains(self) -> None:
        after = [node(f"aten::op{n}", "f32[3]") for n in range(9)]
        assert differences([], after)[-1] == "and 5 more"
        assert "constant" in differences(after, after)[0]


class TestWhoAsked:
    USER = DumpFrame("worker", "/home/user/train.py", 3)
    SYNC = DumpFrame("sync", "/env/lib/python3.11/site-packages/torch_xla/torch_xla.py", 87)

    def test_libraries_and_this_program_are_not_the_users(self) -> None:
        assert is_the_users("/home/user/train.py")
        assert not is_the_users(json.__file__)
        assert not is_the_users(shims.__file__)
        assert not is_the_users("<frozen runpy>")

    def test_a_sync_a_read_and_a_cut_of_the_simulation(self) -> None:
        assert cause_of([self.SYNC, self.USER]) is ExecutionCause.SYNC
        assert cause_of([self.USER]) is ExecutionCause.READ
        # Code of the user's that is called from a sync, as a step closure, reads by itself.
        assert cause_of([self.USER, self.SYNC]) is ExecutionCause.READ
        # Not imported: it imports torch_xla.
        cut = DumpFrame("_fetch", str(Path(shims.__file__).parent / "_simulated/replica.py"), 346)
        assert cause_of([cut, self.USER]) is ExecutionCause.SIMULATION
        meeting = DumpFrame(
            "xla_rendezvous", self.SYNC.file.replace("torch_xla.py", "core/xla_model.py"), 9
        )
        assert cause_of([cut, meeting, self.USER]) is ExecutionCause.RENDEZVOUS
        assert users_frame([self.SYNC, self.USER]) == self.USER
        wrapper = DumpFrame("__init__", torch.nn.parallel.distributed.__file__, 900)
        assert cause_of([wrapper, self.USER]) is ExecutionCause.WRAPPING
        # The forward of the wrapped model, and a wrapper of the user's own, read as others do.
        assert cause_of([self.USER, wrapper]) is ExecutionCause.READ
        assert users_frame([self.SYNC]) is None


def test_a_constant_whose_value_is_not_shown_is_named_by_its_line() -> None:
    nodes = [
        "%0 = s64[] prim::Constant(), location=sample@train.py:28, xla_shape=s64[]",
        "%1 = f32[] prim::Constant(), location=forward@linear.py:134, xla_shape=f32[]",
    ]
    [said] = differences(nodes, nodes)
    assert said.endswith("(a Python number that became part of the graph, at train.py:28)")


def test_lines_of_source_are_no_part_of_a_program() -> None:
    last = "xla_shape=f32[8,4]{1,0}"
    with_line = f"%3 = f32[8,4]{{1,0}} xla::device_data(), location=train@my train.py:22, {last}"
    without = f"%3 = f32[8,4]{{1,0}} xla::device_data(), {last}"
    other = f"%3 = f32[8,4]{{1,0}} aten::mul(%1, %2), location=train@train.py:22, {last}"
    assert without_places([with_line, other]) == (
        without,
        other.replace("location=train@train.py:22, ", ""),
    )


def test_values_in_16_bits_are_seen_in_the_results_of_nodes() -> None:
    assert not in_16_bits([node("aten::mm", "f32[8,16]", "location=bf16[@train.py:3")])
    for dtype in ("bf16", "f16"):
        assert in_16_bits([node("aten::mm", "f32[8,16]"), node("xla::cast", f"{dtype}[8,16]")])


def test_places_in_a_difference_have_the_names_of_the_user() -> None:
    change = "the value of a constant (a Python number, at net_xla.py:12 or utils.py:3)"
    named = {"net_xla.py:12": "net.py (rewritten):12"}
    said = with_places(change, lambda place: named.get(place, place))
    assert said == change.replace("net_xla.py:12", "net.py (rewritten):12")

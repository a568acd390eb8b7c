"""The text of a compiled program: instructions, what they take and run, and whose line they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.compiler.hlo import HloModule, from_here, place_in

NET, LAYER = "/home/user/net.py", "/venv/lib/python3.11/site-packages/flax/linen/linear.py"


def tables(files: dict[str, int], parents: tuple[tuple[int, int], ...]) -> str:
    """Return the tables of a program that say whose line an instruction is.

    Args:
        files: the files, with the line in each.
        parents: for each frame the number of its file, and that of its parent.
    """
    numbered = list(enumerate(files.items(), 1))
    spots = "file_name_id={0} function_name_id=1 line={1} end_line={1} column=0 end_column=0"
    parts = {
        "FileNames": [f'{n} "{name}"' for n, (name, _) in numbered],
        "FunctionNames": ['1 "f"'],
        "FileLocations": [f"{n} {{{spots.format(n, line)}}}" for n, (_, line) in numbered],
        "StackFrames": [
            f"{n} {{file_location_id={file} parent_frame_id={parent}}}"
            for n, (file, parent) in enumerate(parents, 1)
        ],
    }
    return "".join("\n".join((name, *rows, "\n")) for name, rows in parts.items()) + "\n"


TEXT = (
    """HloModule jit_f, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias), {2}: (0, {}) }, x

"""
    + tables({NET: 7, LAYER: 199}, ((1, 1), (2, 2)))
    + r"""%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(128)} parameter(0)
  ROOT %double = f32[8]{0:T(128)} add(%p, %p), metadata={op_name="jit(f)/p[\'a\']" stack_frame_id=2}
}

ENTRY %main (a: f32[8], b: f32[8]) -> (f32[8], f32[8], f32[8]) {
  %b = f32[8]{0:T(128)} parameter(1), metadata={op_name="w[\'b\']"}
  %a = f32[8]{0:T(128)} parameter(0)
  %loop = f32[8]{0:T(128)} while(%a), condition=%cond, body=%body, x={"known_trip_count":{"n":"12"}}
  %get = f32[8]{0:T(128)} get-tuple-element(%loop), index=2
  ROOT %out = (f32[8]{0:T(128)}, f32[8]{0:T(128)}, /*index=2*/f32[8]{0:T(128)}) tuple(%loop, %a, %b)
}
"""
)


@pytest.fixture(scope="module")
def module() -> HloModule:
    return HloModule(TEXT)


def test_instructions_of_the_entry_in_their_order(module: HloModule) -> None:
    assert list(module.entry) == ["b", "a", "loop", "get", "out"]
    assert [module.entry[name].number for name in ("a", "b", "get")] == [0, 1, 2]
    loop = module.entry["loop"]
    turns = module.trips(loop, module.entry)
    assert (loop.opcode, loop.operands, loop.called, turns) == (
        "while",
        ("a",),
        ("body",),
        12,
    )
    assert module.root is module.entry["out"]
    assert module.root is not None
    assert module.root.operands == ("loop", "a", "b")
    assert len(module.root.arrays) == 3


def test_what_is_donated(module: HloModule) -> None:
    assert module.aliases == {0: 1, 2: 0}


def test_a_line_is_the_users_and_shown_as_the_user_knows_it() -> None:
    module = HloModule(TEXT, lambda place: place.replace("/home/user/", ""))
    double = module.computations["body"]["double"]
    assert module.sources.of(double.line) == "net.py:7"
    assert double.operation == "jit(f)/p['a']"


def test_a_place_in_a_message_of_the_compiler() -> None:
    said = """UNIMPLEMENTED: … %dot = s64[3,5] dot(…)
    Suspected Python Code Location:
      /venv/lib/python3.11/site-packages/jax/_src/numpy/x.py:3:1 [dot]
      /home/user/net.py:17:21 [f]"""
    assert place_in(said) == "/home/user/net.py:17"
    library = "at:\n  /usr/lib/python3.11/contextlib.py:144:1 [exit]\n  /home/user/net.py:9:1 [f]"
    assert place_in(library) == "/home/user/net.py:9"
    assert place_in("nothing") == ""


def test_a_place_in_a_folder_with_a_blank_in_its_name() -> None:
    said = "at:\n  /home/a user/net.py:17:21 [f]"
    assert (
        place_in(said) == place_in('loc("/home/a user/net.py":17:21)') == "/home/a user/net.py:17"
    )
    assert place_in("see /home/user/net.py:17: it") == "/home/user/net.py:17"


def test_what_the_compiler_puts_in_has_the_line_of_its_user_or_of_what_it_takes() -> None:
    body = """  %a = f32[8]{0:T(128)} parameter(0)
  %before = f32[8]{0:T(128)} copy(%a)
  %made = f32[8]{0:T(128)} add(%before, %before), metadata={op_name="f" stack_frame_id=2}
  %after = f32[8]{0:T(128)} copy(%made)
  %unused = f32[8]{0:T(128)} parameter(1)
  ROOT %out = (f32[8]{0:T(128)}, f32[8]{0:T(128)}) tuple(%after, %unused)
}
"""
    head, _, _ = TEXT.partition("  %b = f32[8]{0:T(128)} parameter(1)")
    module = HloModule(head + body)
    found = module.sources_in(module.entry)
    assert {found[name] for name in ("before", "made", "after")} == {"/home/user/net.py:7"}
    assert found["unused"] == ""


COUNTING = """HloModule m, is_scheduled=true

%body (p: (s32[], f32[8], s32[], s32[])) -> (s32[], f32[8], s32[], s32[]) {
  %p = (s32[], f32[8], s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8] get-tuple-element(%p), index=1
  %by = s32[] get-tuple-element(%p), index=2
  %most = s32[] get-tuple-element(%p), index=3
  %next = s32[] add(%i, %by)
  %y = f32[8] add(%x, %x)
  ROOT %t = (s32[], f32[8], s32[], s32[]) tuple(%next, %y, %by, MOST)
}

%condition (q: (s32[], f32[8], s32[], s32[])) -> pred[] {
  %q = (s32[], f32[8], s32[], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %end = s32[] get-tuple-element(%q), index=3
  ROOT %less = pred[] compare(%j, %end), direction=LT
}

ENTRY %main (a: f32[8], n: s32[]) -> f32[8] {
  %a = f32[8] parameter(0)
  %n = s32[] parameter(1)
  %zero = s32[] constant(1)
  %start = s32[] copy(%zero)
  %three = s32[] constant(3)
  %hundred = s32[] constant(100)
  %given = (s32[], f32[8], s32[], s32[]) tuple(%start, %a, %three, END)
  %loop = (s32[], f32[8], s32[], s32[]) while(%given), condition=%condition, body=%body
  ROOT %out = f32[8] get-tuple-element(%loop), index=1
}
"""


@pytest.mark.parametrize(
    ("end", "kept", "turns"),
    [
        ("%hundred", "%most", 33),  # 1, 4, …, 97
        ("%n", "%most", None),  # a number that is given
        ("%hundred", "%next", None),  # another one in each turn
    ],
)
def test_turns_of_a_loop_are_counted_where_numbers_say_them(
    end: str, kept: str, turns: int | None
) -> None:
    module = HloModule(COUNTING.replace("END", end).replace("MOST", kept))
    assert module.trips(module.entry["loop"], module.entry) == turns


XLA_MODEL = "/venv/lib/python3.11/site-packages/torch_xla/core/xla_model.py"
HOOK = (
    "HloModule SyncTensorsGraph, is_scheduled=true\n\n"
    + tables({XLA_MODEL: 450, "/home/user/train.py": 7}, ((1, 1), (2, 1), (1, 3)))
    + r"""ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0:T(128)} parameter(0)
  %hook = f32[8]{0:T(128)} negate(%a), metadata={op_name="x" stack_frame_id=1}
  ROOT %own = f32[8]{0:T(128)} negate(%hook), metadata={op_name="x" stack_frame_id=3}
}
"""
)


def test_a_hook_of_the_backward_pass_is_at_the_line_that_began_it() -> None:
    """No line is torch_xla's: the frames of what runs in a hook begin there."""
    for backward, line in (("/home/user/train.py:9", "train.py:9"), ("", "")):
        module = HloModule(HOOK, lambda place: place.rpartition("/")[2], (), backward)
        assert module.sources.of(module.entry["hook"].line) == line
        assert module.sources.of(module.entry["own"].line) == "train.py:7"


def test_a_file_near_the_working_directory_is_named_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert from_here(f"{tmp_path}/nets/net.py:3") == "nets/net.py:3"
    assert from_here(f"{tmp_path.parent}/net.py:3") == "../net.py:3"
    for other in ("/net.py:3", "torch/optim/adam.py:3", "xla__device_data"):
        assert from_here(other) == other

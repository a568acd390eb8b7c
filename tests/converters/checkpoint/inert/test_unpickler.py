"""The machine that reads pickles executes nothing, takes no more than the file has, and always ends."""

import builtins
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from converters.checkpoint import open_checkpoint
from converters.checkpoint.formats.torch_names import find_name
from converters.checkpoint.inert.records import ForbiddenNameError, PickleError, Unknown
from converters.checkpoint.inert.unpickler import Unpickler
from converters.errors import CheckpointHoldsCodeError

CODES = {
    "os.system": (os.system, ("touch {}",)),
    "eval": (eval, ("open('{}', 'w')",)),
    "exec": (exec, ("open('{}', 'w')",)),
    "getattr": (getattr, (os, "system")),
    "open": (open, ("{}", "w")),
    "import": (builtins.__import__, ("os",)),
}


def load(data):
    return Unpickler(data, 0, find_name).load()


class Reduced:
    def __init__(self, function, arguments):
        self.pair = function, arguments

    def __reduce__(self):
        return self.pair


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", [name for name in CODES if name != "getattr"])
def test_code_is_refused_by_name(tmp_path, name, protocol):
    canary = tmp_path / "canary"
    function, arguments = CODES[name]
    value = Reduced(function, tuple(text.format(canary) for text in arguments))
    data = pickle.dumps({"deep": [({"x": value},)]}, protocol)
    with pytest.raises(ForbiddenNameError, match=f"{function.__name__}$"):
        load(data)
    assert not canary.exists()


@pytest.mark.parametrize(
    "name", ["builtins.getattr", "builtins.eval", "torch.load", "torch.hub.load"]
)
def test_a_name_with_an_effect_is_refused_where_it_stands(name):
    module, _, last = name.rpartition(".")
    call = b"" if last != "getattr" else b"cnumpy\nndarray\nX\x03\0\0\0mro\x86R"
    with pytest.raises(ForbiddenNameError, match=name):
        load(f"\x80\x02c{module}\n{last}\n".encode("latin-1") + call + b".")
    with pytest.raises(ForbiddenNameError, match=name):
        load(pickle.dumps((module, last), 4)[:2] + _stack_global(module, last)[:-1] + call + b".")


def _stack_global(module, name):
    return (
        b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)) + b"\x93."
    )


def test_every_name_that_weights_only_allows_is_known():
    from torch._weights_only_unpickler import _get_allowed_globals

    for name in _get_allowed_globals():
        module, _, last = name.rpartition(".")
        assert not isinstance(find_name(module, last), Unknown), name


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02X\xff\xff\xff\xffabc.",  # a text longer than the file
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7f.",  # bytes of an absurd length
        b"\x80\x04\x96" + b"\xff" * 7 + b"\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",  # an integer of two gigabytes
        b"\x80\x02Kar\xff\xff\xff\xff" + b"h\x05.",  # a memo of four milliards
        b"\x80\x02Kau.",
        b"\x80\x02}(Kau.",
        b"\x80\x02N\x85R.",
        b"\x80\x02]N\x86R.",
        b"\x80\x02ccollections\nOrderedDict\nKaR.",
        b"\x80\x02ccollections\nOrderedDict\n(Ka\x85\x85tR.",
        b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.",  # two gigabytes of zeros
        b"\x80\x02]N}b.",
        b"\x80\x02Q.",
        b"\x80\x02KaQ.",
        b"\x80\x02}]Kas.",  # a list as a key
        b"\x80\x02P1\n.",
        b"\x80\x02i" + b"collections\nOrderedDict\n.",  # without a mark
        b"\x80\x02o.",
        b"\x80\x02\x82\x01.",  # an extension
        b"\x80\x7f.",
        b"c" + b"a" * 100_000,
    ],
)
def test_malformed_pickles_end(data):
    with pytest.raises(PickleError):
        load(data)


def test_keys_nested_too_deeply_are_refused():
    """Hashing a tuple of tuples of … takes Python's own stack, and kills the process."""
    data = b"\x80\x02}" + b"K\x01" + b"\x85" * 200_000 + b"K\x01s."
    with pytest.raises(PickleError, match="a key is a tuple"):
        load(data)


def test_keys_that_collide_are_refused():
    """All multiples of 2**61 - 1 have the hash 0: a dict of them takes time by the square."""
    number = ((1 << 61) - 1) * 3
    with pytest.raises(PickleError, match="very large number"):
        load(pickle.dumps({number: 1}, 2))


def test_a_key_of_shared_tuples_is_refused():
    """Ten lines of tuples of each other are hashed in 16**10 steps."""
    stage = b"(" + b"h\x00" * 16 + b"tq\x000"
    data = b"\x80\x02K\x01q\x000" + stage * 10 + b"}h\x00K\x01s."
    with pytest.raises(PickleError, match="a key is a tuple"):
        load(data)


@pytest.mark.parametrize(
    "name", [b"_codecs\nencode", b"builtins\nbytearray", b"collections\nCounter", b"builtins\nset"]
)
def test_copies_of_copies_are_refused(name):
    """Five bytes recall a text of a megabyte and a function that copies it: a million of them are 200 GB."""
    value = {b"_codecs\nencode": "x" * (1 << 20), b"builtins\nbytearray": b"x" * (1 << 20)}.get(
        name
    )
    if name == b"collections\nCounter":
        value = dict.fromkeys(range(100_000), 1)
    elif name == b"builtins\nset":
        value = list(range(100_000))
    made = pickle.dumps(value, 2)[:-1]  # without STOP
    data = made + b"q\xff" + b"c" + name + b"\nq\xfe" + b"h\xfeh\xff\x85R" * 1000 + b"."
    with pytest.raises(PickleError, match="copies its values again and again"):
        load(data)


def test_plain_values_are_as_python_reads_them():
    value = {
        "a": [1, -1, 255, 256, 65536, -(2**31), 2**40, 2.5, True, False, None],
        "b": (1,),
        "c": ((), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "d": {1: "x", (1, "y"): "ü", None: b"bytes"},
        "e": {1, 2, 3},
        "f": bytearray(b"abc"),
        "g": "x" * 300,
        "h": b"y" * 300,
        "i": 1 + 2j,
        "j": frozenset({1}),
    }
    for protocol in range(6):
        assert load(pickle.dumps(value, protocol)) == value


def test_a_list_that_holds_itself():
    looped = [1]
    looped.append(looped)
    read = load(pickle.dumps(looped, 2))
    assert read[1] is read


def test_deep_nesting_is_read(tmp_path):
    read = load(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    assert type(read) is list
    for _ in range(99_999):
        read = read[0]
    assert read == []


def test_pythons_own_unpickler_is_not_used(tmp_path):
    import torch

    torch.save({"a": torch.ones(2)}, tmp_path / "x.pt")
    (tmp_path / "y.bin").write_bytes(pickle.dumps(Reduced(os.system, ("true",))))
    events = []
    listening = True
    sys.addaudithook(lambda event, _: events.append(event) if listening else None)
    open_checkpoint(tmp_path / "x.pt").read("a")
    with pytest.raises(CheckpointHoldsCodeError):
        open_checkpoint(tmp_path / "y.bin")
    listening = False
    assert "open" in events
    assert not {"pickle.find_class", "os.system", "exec"} & set(events)


ASKED_FOR = """
import pickle, sys
import numpy
from converters.checkpoint import open_checkpoint
from tests.converters.checkpoint.inert.test_unpickler import load

load(pickle.dumps(["warm", numpy.float32(1)]))
texts = pickle.dumps("\xe9\u20ac", 0), pickle.dumps(numpy.str_("\xe9\u20ac"), 2)
for name in [name for name in sys.modules if name.startswith("encodings.")]:
    del sys.modules[name]
imported = []
sys.addaudithook(lambda event, words: imported.append(words[0]) if event == "import" else None)
print([load(text) for text in texts] == ["\xe9\u20ac"] * 2, imported)
"""


def test_no_codec_is_imported_for_a_text():
    """In a process of its own: Python imports a codec once."""
    done = subprocess.run(
        [sys.executable, "-c", ASKED_FOR],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path.cwd(),
    )
    assert done.stdout == "True []\n"

"""Every element type, arrangement and sharing of tensors comes out of the file as torch has it, lazily."""

import collections
import os
import random

import numpy as np
import pytest
import torch

from converters.checkpoint import open_checkpoint
from converters.checkpoint.mapped_file import MappedFile
from converters.checkpoint.stored import FileSpan, Storage, StoredTensor
from converters.errors import CheckpointDamagedError, NotAStateDictError, UnsupportedDtypeError

FORMS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def saved(value, path, zipped=True, **options):
    torch.save(value, path, _use_new_zipfile_serialization=zipped, **options)
    return path


def bits(array):
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).tolist()


@FORMS
def test_every_element_type_bit_for_bit(tmp_path, zipped):
    chance = random.Random(0)
    tensors = {}
    for dtype in DTYPES:
        size = torch.empty((), dtype=dtype).element_size()
        content = bytes(
            chance.randrange(2 if dtype == torch.bool else 256) for _ in range(15 * size)
        )
        raw = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        tensors[str(dtype).removeprefix("torch.")] = raw.view(dtype).reshape(3, 5)
    checkpoint = open_checkpoint(saved(tensors, tmp_path / "x.pt", zipped))
    for name, tensor in tensors.items():
        array = checkpoint.read(name)
        assert checkpoint.infos[name].dtype == array.dtype.name == name
        assert array.shape == (3, 5)
        assert bits(array) == tensor.contiguous().view(torch.uint8).reshape(-1).tolist()
        assert array.flags.aligned
        assert not array.flags.writeable
        checkpoint.release(name)
        assert bits(array) == bits(checkpoint.read(name))  # views stay good


@FORMS
def test_every_arrangement(tmp_path, zipped):
    base = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
    numbers = torch.randn(7, dtype=torch.complex64)
    tensors = {
        "whole": base,
        "transposed": base.permute(2, 0, 1),
        "part": base[1:3, ::2, 1:4],
        "row": base[2, 3],
        "scalar": base[1, 1, 1],
        "expanded": base[:1, :, :1].expand(5, 6, 5),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugate": numbers.conj(),
        "negative": torch.randn(7, dtype=torch.complex64).conj().imag,
        "parameter": torch.nn.Parameter(base[0]),
        "empty": torch.zeros(0, 3),
        "empty part": base[2:2],
        "swapped": torch.ones(3, 2, 1).transpose(0, 2),
    }
    checkpoint = open_checkpoint(saved(tensors, tmp_path / "x.pt", zipped))
    for name, tensor in tensors.items():
        array = checkpoint.read(name)
        assert array.shape == tuple(tensor.shape), name
        np.testing.assert_array_equal(array, tensor.detach().resolve_conj().resolve_neg().numpy())


def test_a_part_of_a_large_tensor_is_read_alone(tmp_path):
    base = torch.zeros(1000, 1000)
    checkpoint = open_checkpoint(saved({"row": base[3]}, tmp_path / "x.pt"))
    array = checkpoint.read("row")
    assert array.shape == (1000,)
    assert array.nbytes == checkpoint.infos["row"].nbytes == 4000


@FORMS
def test_shared_tensors_are_found(tmp_path, zipped):
    weight = torch.randn(3, 4)
    tensors = {
        "embed": weight,
        "first half": weight[:2],
        "head": weight,
        "transposed": weight.T,
        "copy": weight.clone(),
        "alias": weight.view(3, 4),
        "first again": weight[:2],
        "empty": weight[:0],
        "empty again": weight[:0],
    }
    checkpoint = open_checkpoint(saved(tensors, tmp_path / "x.pt", zipped))
    assert checkpoint.shared == (("embed", "head", "alias"), ("first half", "first again"))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@FORMS
def test_every_protocol(tmp_path, zipped, protocol):
    value = collections.OrderedDict(a=torch.ones(2), b=torch.zeros(3, dtype=torch.uint16))
    checkpoint = open_checkpoint(saved(value, tmp_path / "x.pt", zipped, pickle_protocol=protocol))
    assert {key: info.dtype for key, info in checkpoint.infos.items()} == {
        "a": "float32",
        "b": "uint16",
    }


@pytest.mark.parametrize(
    ("make", "error", "part"),
    [
        (
            # Made in the test: newer versions of torch warn.
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
            NotAStateDictError,
            "is a quantized tensor",
        ),
        (lambda: torch.ones(2, 2).to_sparse(), NotAStateDictError, "is a sparse tensor"),
        (
            lambda: torch.zeros(2, dtype=torch.uint8).view(torch.bits8),
            UnsupportedDtypeError,
            "type bits8",
        ),
    ],
    ids=["quantized", "sparse", "bits"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_other_kinds_of_tensors_are_refused_by_name(tmp_path, make, error, part, refused):
    path = saved({"a": torch.ones(2), "w": make()}, tmp_path / "x.pt")
    with refused(error, "x.pt: w", part):
        open_checkpoint(path)


@pytest.mark.parametrize(
    "keys",
    [
        ["layer.weight", "layer.weight.quant_state.bitsandbytes__nf4"],
        ["layer.weight", "layer.SCB"],
        ["layer.qweight", "layer.qzeros", "layer.scales"],
    ],
)
def test_quantized_checkpoints_are_refused_by_name(tmp_path, keys, refused):
    path = saved({key: torch.ones(2) for key in keys}, tmp_path / "x.pt")
    with refused(UnsupportedDtypeError, "is quantized", "dequantize it first"):
        open_checkpoint(path)


FLOAT8 = torch.zeros(4, 4).to(torch.float8_e4m3fn)
INT8 = torch.ones(4, 4, dtype=torch.int8)
UINT8 = torch.ones(4, 4, dtype=torch.uint8)
ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("state", "scheme"),
    [
        ({"q.weight": FLOAT8, "q.weight_scale_inv": ONE}, "FP8 with scales of blocks"),
        ({"q.weight": FLOAT8, "q.scale_weight": ONE}, "FP8 with scales"),
        ({"q.weight": UINT8, "q.weight_scale": ONE, "q.weight_scale_2": ONE}, "NVFP4"),
        ({"q.weight": INT8, "q.weight_scale": ONE}, "compressed-tensors"),
        ({"q.weight._data": INT8, "q.weight._scale": ONE}, "quanto"),
        ({"q.weight._data._data": UINT8, "q.weight._scale": ONE, "q.weight._shift": ONE}, "quanto"),
        ({"q.weight:qdata": FLOAT8, "q.weight:scale": ONE}, "torchao"),
        ({"e.up_proj_blocks": UINT8, "e.up_proj_scales": UINT8}, "MXFP4"),
        ({"q.B": INT8.int(), "q.s": ONE}, "Marlin"),
        ({"q.W_q": UINT8, "q.scale": ONE}, "HQQ"),
        ({"fc.weight": INT8, "fc.bias": torch.ones(4)}, "a weight of int8"),
    ],
)
def test_quantized_checkpoints_are_told_by_what_stands_beside_their_numbers(
    tmp_path, state, scheme, refused
):
    path = saved(state, tmp_path / "x.pt")
    with refused(UnsupportedDtypeError, "is quantized", scheme):
        open_checkpoint(path)


@pytest.mark.parametrize(
    "state",
    [
        {"q.weight": FLOAT8},
        {"q.weight": torch.ones(4, 4), "q.weight_scale": ONE},
        {"hash.weight": torch.ones(4, dtype=torch.uint8), "table": INT8},
    ],
)
def test_what_only_looks_quantized_is_read(tmp_path, state):
    assert set(open_checkpoint(saved(state, tmp_path / "x.pt")).infos) == set(state)


def test_an_expansion_to_an_absurd_size_is_refused(tmp_path, refused):
    path = saved({"w": torch.ones(1).expand(1 << 20, 1 << 20)}, tmp_path / "x.pt")
    with refused(CheckpointDamagedError, "4 bytes claims the shape (1048576, 1048576)"):
        open_checkpoint(path)


@FORMS
def test_thirty_cuts(tmp_path, zipped, refused):
    whole = saved(
        {"a": torch.ones(300), "b": torch.ones(3)}, tmp_path / "whole.pt", zipped
    ).read_bytes()
    chance = random.Random(1)
    for _ in range(30):
        (tmp_path / "cut.pt").write_bytes(whole[: chance.randrange(1, len(whole))])
        with refused(CheckpointDamagedError, "cut.pt", "truncated"):
            open_checkpoint(tmp_path / "cut.pt")


@FORMS
def test_memory_of_a_large_file_stays_small(tmp_path, zipped):
    size = 16 << 20
    path = saved(
        {f"w{index}": torch.full((size // 4,), 1.0) for index in range(16)},
        tmp_path / "x.pt",
        zipped,
    )
    checkpoint = open_checkpoint(path)
    before = resident()
    highest = 0
    for key in checkpoint.infos:
        assert checkpoint.read(key).sum(dtype=np.float64) == size // 4
        highest = max(highest, resident() - before)
        checkpoint.release(key)
    assert highest < 3 * size  # one tensor at a time; all of them are 16


def resident():
    """Bytes of memory of this process, pages of mapped files included."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize(
    ("shape", "strides", "part"),
    [
        ((3, 2), (2, 1), "reaches beyond its storage"),
        ((2, 2), (1 << 57, 1), "reaches beyond its storage"),
        ((-1,), (1,), "impossible shape"),
        ((2.0,), (1,), "impossible shape"),
        ((2,), (-1,), "impossible shape"),
        ((2, 2), (1,), "impossible shape"),
        ((0, 1 << 60), (1, 1), "impossible shape"),
        ((1 << 40, 1 << 40), (0, 0), "impossible shape"),
        ((1 << 30, 1), (0, 1), "claims the shape"),
        ((1,) * 65, (1,) * 65, "impossible shape"),
    ],
)
def test_impossible_tensors_are_refused(tmp_path, shape, strides, part):
    (tmp_path / "x").write_bytes(bytes(16))
    storage = Storage(FileSpan(MappedFile(tmp_path / "x"), 0, 16), 0, 16, "float32")
    with pytest.raises(ValueError, match=part):
        StoredTensor(storage, 0, shape, strides, "float32")


def test_odd_strides_of_sides_that_are_one(tmp_path):
    (tmp_path / "x").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    storage = Storage(FileSpan(MappedFile(tmp_path / "x"), 0, 16), 0, 16, "float32")
    tensor = StoredTensor(storage, 0, (1, 4, 1), (1 << 57, 1, 1 << 57), "float32")
    assert tensor.read().ravel().tolist() == [0, 1, 2, 3]
    assert StoredTensor(storage, 4, (0, 5), (1 << 57, 1), "float32").read().shape == (0, 5)

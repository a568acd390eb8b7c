"""Rules of sharding: each mistake with its line, all at once; arrays on eight simulated devices."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from converters.checkpoint import TensorInfo
from converters.errors import ShardingError
from converters.output import load_rules, parse_mesh, partition

ROOT = Path(__file__).resolve().parents[3]
MESH = {"data": 4, "model": 2}
INFOS = {
    "params/a/query/kernel": TensorInfo((16, 8), "float32"),
    "params/a/query/bias": TensorInfo((8,), "float32"),
    "params/embedding": TensorInfo((32, 6), "bfloat16"),
    "params/scale": TensorInfo((), "float32"),
}
RULES = """
# a comment
query/kernel$: [null, model]
embedding: [[data, model]]
default: []
"""


def rules(tmp_path, text):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    return load_rules(path, MESH)


def test_a_mesh(refused):
    assert parse_mesh("data=4,model=2") == MESH
    assert list(parse_mesh("model=1, data=3")) == ["model", "data"]
    for text in ("", "data", "data=0", "data=x", "=4", "data=4,,model=2", "a b=3", "data=-1"):
        with refused(ShardingError, "is not NAME=NUMBER"):
            parse_mesh(text)
    with refused(ShardingError, 'two axes "data"', '"x"'):
        parse_mesh("data=4,data=2,x")


def test_the_first_rule_that_matches_decides(tmp_path):
    made = partition(INFOS, MESH, rules(tmp_path, f"{RULES}kernel: [data]\n"))
    assert made.specs == {
        "params/a/query/kernel": (None, "model"),
        "params/a/query/bias": (),
        "params/embedding": (("data", "model"),),
        "params/scale": (),
    }
    assert made.defaulted == ("params/a/query/bias", "params/scale")
    assert made.cuts == {
        "params/a/query/kernel": (1, 2),
        "params/a/query/bias": (1,),
        "params/embedding": (8, 1),
        "params/scale": (),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "rules.yaml has no rules"),
        ("- a", "has no rules"),
        ("a: [", "rules.yaml:1: not YAML"),
        ("a: []\nb: [model\n", "not YAML"),
        ("\n(: []", 'rules.yaml:2: "(" is not a regular expression'),
        ("a: model", 'rules.yaml:1: the axes of "a" must be a list'),
        ("a: {b: c}", "must be a list"),
        ("a:\n", "must be a list"),
        ("a: [{b: c}]", "neither a mesh axis"),
        ("a: [[[model]]]", "neither a mesh axis"),
        ("a: &x [*x]", "neither a mesh axis"),
        ("a: [modle]", 'the mesh has no axis "modle" (it has data, model)'),
        ("a: [model, [data, model]]", 'the mesh axis "model" is used twice'),
        ("a: []\nb: []\n\na: [model]", 'rules.yaml:4: "a" is there already, in line 1'),
        ("[a]: []", "rules.yaml:1: a rule is an expression"),
        ("a: [\0]", "not YAML"),
        ("&a [*a]: []", "rules.yaml:1"),
    ],
)
def test_each_mistake_has_its_line(tmp_path, refused, text, problem):
    with refused(ShardingError, problem):
        rules(tmp_path, text)


def test_all_mistakes_at_once(tmp_path):
    with pytest.raises(ShardingError) as caught:
        rules(tmp_path, "(: []\na: [x, y]\nb: 3\nc: []\nc: []\nd: [model, model]")
    lines = [problem.split(":")[1] for problem in caught.value.problems]
    assert lines == ["1", "2", "2", "3", "5", "6"]
    assert "and 1 more" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path, refused):
    with refused(ShardingError, "gone cannot be read (No such file"):
        load_rules(tmp_path / "gone", MESH)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with refused(ShardingError, "binary"):
        load_rules(tmp_path / "binary", MESH)


def test_all_misfits_at_once(tmp_path):
    found = rules(tmp_path, "kernel: [model, null, data]\nembedding: [null, data]\nnothing: []\n")
    with pytest.raises(ShardingError) as caught:
        partition(INFOS, MESH, found)
    path = tmp_path / "rules.yaml"
    assert caught.value.problems == (
        f"{path}:1: params/a/query/kernel has 2 axes, the rule 3",
        'no rule matches params/a/query/bias, and there is no "default"',
        f"{path}:2: axis 1 of params/embedding, 6, cannot be divided by 4",
        'no rule matches params/scale, and there is no "default"',
        f'{path}:3: no array matches "nothing"',
    )


ON_DEVICES = """
import sys
from pathlib import Path
import jax, ml_dtypes, numpy as np
import orbax.checkpoint as orbax
from converters.checkpoint import Checkpoint, TensorInfo, flatten, nest
from converters.errors import ShardingError
from converters.layers.join import SUM, Concat, Stack
from converters.layers.layout import Merge, Permute, Split, chain
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.output import leaves_of, load_rules, parse_mesh, partition, place_on_mesh, write_pytree

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
arrays = {k: rng.standard_normal((16, 24)).astype(np.float32) for k in "abc"}
arrays["one"] = np.array(3.0, np.float32)
arrays["bf16"] = rng.standard_normal((16, 24)).astype(ml_dtypes.bfloat16)

class Counting(Checkpoint):
    source = "memory"
    infos = {k: TensorInfo(a.shape, a.dtype.name) for k, a in arrays.items()}
    released = set()
    def read(self, key): return arrays[key]
    def release(self, key): self.released.add(key)

T = Permute((1, 0))
rows = chain([Split(1, (4, 6)), Permute((2, 1, 0)), Merge(0, (6, 4))])
def leaf(name, pieces, join=None):
    shapes = [p.shape(arrays[p.key].shape) for p in pieces]
    made = {} if join is None else {"join": join}
    shape = join.shape(shapes) if join else shapes[0]
    return PlannedLeaf(name, TensorInfo(shape, arrays[pieces[0].key].dtype.name), tuple(pieces), **made)
planned = [
    leaf("params/kept", [Piece("a")]), leaf("params/turned", [Piece("a", T)]),
    leaf("params/rows", [Piece("b", rows)]), leaf("params/sum", [Piece("a"), Piece("c")], SUM),
    leaf("params/stack", [Piece("a", T), Piece("b", T)], Stack(0)),
    leaf("params/stack1", [Piece("a", T), Piece("b", T)], Stack(1)),
    leaf("params/concat", [Piece("a", T), Piece("b", T), Piece("c", T), Piece("a", T)], Concat(1)),
    leaf("params/scalar", [Piece("one")]), leaf("params/bf16", [Piece("bf16", T)]),
]
source = Counting()
leaves = leaves_of(planned, source)
(folder / "rules.yaml").write_text('''
kept|sum: [data, model]
turned|rows|bf16: [null, [data, model]]
params/stack$: [model, data, null]
stack1: [data, model]
concat: [null, [model, data]]
default: []
''')
mesh = parse_mesh("data=4,model=2")
made = partition({x.path: x.info for x in leaves}, mesh, load_rules(folder / "rules.yaml", mesh))
want = {x.path: x.read(source.read) for x in planned}
def require(tree, sharded=True):
    found = flatten(tree)
    assert found.keys() == want.keys()
    for path, array in want.items():
        assert found[path].dtype == array.dtype and found[path].shape == array.shape
        assert np.array_equal(np.asarray(found[path]), array), path
        if sharded:
            assert len(found[path].sharding.device_set) == 8
            sides = tuple(s // c for s, c in zip(array.shape, made.cuts[path]))
            assert {shard.data.shape for shard in found[path].addressable_shards} == {sides}, path
seen = []
placed = place_on_mesh(leaves, made, progress=lambda done, total: seen.append((done, total)))
require(placed)
assert seen[-1] == (sum(a.nbytes for a in want.values()),) * 2
assert source.released == set(arrays)
# A jitted function takes them as they lie.
assert np.allclose(jax.jit(lambda t: t["params"]["kept"].sum())(placed), want["params/kept"].sum())

# An orbax checkpoint cut as the mesh cuts: every device reads its own chunks.
write_pytree(folder / "x", leaves, "orbax", cuts=made.cuts)
for path, parts in made.cuts.items():
    chunks = list((folder / "x" / path.replace("/", ".")).glob("[0-9]*"))
    assert len(chunks) == int(np.prod(parts)), path
target = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), placed)
with orbax.StandardCheckpointer() as standard:
    require(standard.restore(folder / "x", target))
    require(standard.restore(folder / "x"), sharded=False)

for text, problem in (("data=16", "the mesh has 16 devices, jax sees 8"),):
    mesh = parse_mesh(text)
    (folder / "rules.yaml").write_text("default: []")
    some = partition({x.path: x.info for x in leaves}, mesh, load_rules(folder / "rules.yaml", mesh))
    try:
        place_on_mesh(leaves, some)
    except ShardingError as error:
        assert problem in str(error)
    else:
        raise AssertionError
wide = leaf("params/kept", [Piece("a")])
wide = PlannedLeaf(wide.path, TensorInfo(wide.info.shape, "float64"), wide.pieces)
try:
    place_on_mesh(leaves_of([wide], source, cast=True), made)
except ShardingError as error:
    assert "jax narrows" in str(error)
else:
    raise AssertionError
cast = PlannedLeaf(wide.path, TensorInfo(wide.info.shape, "bfloat16"), wide.pieces)
found = place_on_mesh(leaves_of([cast], source, cast=True), made)["params"]["kept"]
assert np.array_equal(np.asarray(found), arrays["a"].astype(ml_dtypes.bfloat16))
print("all as it should be")
"""


def test_eight_devices(tmp_path):
    flags = {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run(
        [sys.executable, "-c", ON_DEVICES, tmp_path],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "all as it should be\n", done.stderr[-3000:]

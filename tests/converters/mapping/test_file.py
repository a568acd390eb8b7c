"""Mapping files: saved and loaded they give the same plan; what is wrong in one is told with its line."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from converters import convert_to_pytree
from converters.checkpoint.reader import TensorInfo
from converters.errors import MappingFileError, OutputError
from converters.layers.join import Stack
from converters.layers.layout import Permute
from converters.mapping import Outcome, make_plan, read_slots
from converters.mapping.file import OpenSizes, load_mapping, mapping_text, save_mapping
from converters.mapping.module_tree import Slot, Target
from converters.mapping.rules_text import parse_rules


def infos_of(model):
    return {
        key: TensorInfo(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for key, value in model.state_dict().items()
    }


def tied():
    model = nn.Module()
    model.embed = nn.Embedding(7, 3)
    model.layer = nn.ModuleList([nn.TransformerEncoderLayer(4, 2, 6) for _ in range(12)])
    model.head = nn.Linear(3, 7, bias=False)
    model.head.weight = model.embed.weight
    return model


def mixed():
    """Blocks that differ: their rules must not take each other's keys."""
    kinds = [nn.Linear(3, 4), nn.Conv1d(3, 4, 5), nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4)]
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.ModuleList([kinds[i], kinds[-i]]) for i in range(5))
    return model


def blocks(depth):
    """Blocks of two Linears and a norm: the Linears share a rule, at every depth."""
    parts = [(nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)) for _ in range(depth)]
    return nn.ModuleDict({"blocks": nn.ModuleList(nn.Sequential(*block) for block in parts)})


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
    "tied": tied,
    "mixed": mixed,
    "resnet": lambda: nn.Sequential(
        *(nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)) for _ in range(3)), nn.Linear(3, 2)
    ),
    "recurrent": lambda: nn.ModuleDict({"r": nn.LSTM(3, 4, 2, bidirectional=True)}),
    "attention": lambda: nn.ModuleDict({"a": nn.MultiheadAttention(6, 3, kdim=4, vdim=5)}),
    "transposed": lambda: nn.ModuleList(nn.ConvTranspose2d(3, 4, 3) for _ in range(3)),
    "single": lambda: nn.Linear(3, 4),
    "none": nn.Identity,
}


@pytest.mark.parametrize("api", ["linen", "nnx"])
@pytest.mark.parametrize("name", MODELS)
def test_saved_and_loaded_it_is_the_same_plan(name, api, tmp_path):
    model = MODELS[name]()
    infos = infos_of(model)
    plan = make_plan("a/checkpoint.pt", infos, read_slots(model, api))
    save_mapping(plan, tmp_path / "mapping.yaml", api)
    mapping = load_mapping(tmp_path / "mapping.yaml")
    assert mapping.api == api
    assert mapping.unused(infos) == ()
    assert make_plan("a/checkpoint.pt", infos, mapping.slots(infos)) == plan


def test_what_is_refused_lacking_or_foreign_is_kept(tmp_path):
    model = tied()
    infos = infos_of(model)
    del infos["embed.weight"], infos["layer.3.linear1.bias"]
    infos["foreign"] = TensorInfo((2,), "int64")
    infos["layer.5.linear2.weight"] = TensorInfo((9, 9), "bfloat16")
    plan = make_plan("x", infos, read_slots(model))
    assert len(plan.refused) == 3
    save_mapping(plan, tmp_path / "mapping.yaml")
    assert make_plan("x", infos, load_mapping(tmp_path / "mapping.yaml").slots(infos)) == plan


def test_what_torch_computes_is_refused_in_the_file(tmp_path):
    model = nn.Sequential(prune.l1_unstructured(nn.Linear(3, 4), "weight", 1))
    infos = infos_of(model)
    plan = make_plan("x", infos, read_slots(model))
    assert plan.refused == ()
    save_mapping(plan, tmp_path / "m.yaml")
    again = make_plan("x", infos, load_mapping(tmp_path / "m.yaml").slots(infos))
    assert {row.key for row in again.refused} == {"0.weight_orig", "0.weight_mask"}
    assert "--model" in again.refused[0].note


def test_repeated_blocks_are_one_rule():
    model = tied()
    plan = make_plan("x", infos_of(model), read_slots(model))
    text = mapping_text(plan)
    # One block's keys (a TransformerEncoderLayer has 12), the embedding and its tied head.
    assert text.count("- key:") == 14
    assert r"key: layer\.(\d+)\.linear1\.weight" in text
    assert r"path: params/layer_\1/linear1/kernel" in text


def test_a_rule_takes_no_other_rules_keys():
    model = mixed()
    infos = infos_of(model)
    text = mapping_text(make_plan("x", infos, read_slots(model)))
    assert r"(\d+)\.weight" not in text  # Linear, Conv and norms have keys of one form


def test_rules_of_two_blocks_fit_three(tmp_path):
    two, three = blocks(2), blocks(3)
    save_mapping(make_plan("x", infos_of(two), read_slots(two)), tmp_path / "mapping.yaml")
    infos = infos_of(three)
    slots = load_mapping(tmp_path / "mapping.yaml").slots(infos)
    assert make_plan("x", infos, slots) == make_plan("x", infos, read_slots(three))


def test_rules_of_one_size_fit_another(tmp_path):
    """Shares and open sides follow from a tensor's shape, named sides from the sizes of the model."""
    small, large = torch.nn.MultiheadAttention(12, 3), torch.nn.MultiheadAttention(20, 5)
    sizes = OpenSizes({"width": 12, "heads": (3, 4)}, {"": {"num_heads": "heads[0]"}})
    file = tmp_path / "mapping.yaml"
    save_mapping(make_plan("x", infos_of(small), read_slots(small)), file, sizes=sizes)
    text = file.read_text()
    assert "\nsizes:\n  heads:\n  - 3\n  - 4\nrules:" in text
    assert "split(1, heads[0], -1)" in text
    for model, values in ((small, None), (large, {"heads": (5, 4), "width": 20, "depth": 2})):
        infos = infos_of(model)
        slots = load_mapping(file, values).slots(infos)
        assert (
            make_plan("x", infos, slots).leaves == make_plan("x", infos, read_slots(model)).leaves
        )
    with pytest.raises(MappingFileError, match=r"no multiple of 3"):
        load_mapping(file).slots(infos_of(large))
    assert "sizes" not in mapping_text(make_plan("x", infos_of(small), read_slots(small)))


def rules(tmp_path, text, version="version: 1"):
    path = tmp_path / "mapping.yaml"
    path.write_text(f"{version}\nrules:\n{text}")
    return load_mapping(path)


def problems_of(tmp_path, text, infos=None, version="version: 1"):
    with pytest.raises(MappingFileError) as caught:
        rules(tmp_path, text, version).slots(infos or {})
    assert len(str(caught.value).splitlines()) == 1
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- {key: a, path: p, color: red}", "line 3: unknown field color"),
        ("- {key: (a, path: p}", "line 3: key: no regular expression"),
        (
            "- {key: a, path: p, transform: 'turn(1, 0)'}",
            "line 3: transform: 'turn(1, 0)' is no tr",
        ),
        ("- {key: a, path: p, transform: 'transpose(1, 1)'}", "line 3: transform:"),
        ("- {key: a, path: p, part: 'slice(1)'}", "line 3: part:"),
        ("- {key: a, path: p, part: 'share(0, 3, 3)'}", "line 3: part:"),
        (
            "- {key: a, path: p, transform: 'split(1, n, 4)'}",
            "n is no size of this file; there are",
        ),
        (
            "- {key: a, path: p, transform: 'split(1, -1, -1)'}",
            "one side of a split or merge may be",
        ),
        ("- {key: a, path: p, transform: 'split(1, a.b, 4)'}", "a.b is no expression of sizes"),
        ("- {key: a, path: p, transform: 'split(1, 4 / 0, 4)'}", "4 / 0 has no value"),
        ("- {key: a, path: p}\nsizes: [3]", "sizes is no mapping of names to numbers"),
        ("- {key: a, path: p}\nsizes: {n: !!python/name:os.sep x}", "sizes is no mapping of names"),
        ("- {key: a, path: p, join: glue}", "line 3: join:"),
        ("- {key: a, path: p, join: 'computed(3, 4)'}", "line 3: join: values that torch computes"),
        ("- {key: a, path: p, index: one}", "line 3: the index 'one'"),
        ("- {key: a, path: 'p/\\1'}", "line 3: path: \\1 refers to a group"),
        ("- {key: a, path: 'p/\\g<n>'}", "line 3: path: \\g<n> refers to a group"),
        ("- {key: a, path: 'p\\q'}", "line 3: path: \\q is no reference"),
        ("- {key: a, path: p//q}", "line 3: the path 'p//q' has an empty part"),
        ("- {key: a}", "line 3: a rule has one of path, to, tied, drop, refuse; this one has none"),
        ("- {key: a, path: p, drop: why}", "this one has path and drop"),
        ("- {path: p}", "line 3: a rule without a key"),
        ("- {key: a, key: b, path: p}", "line 3: key is given twice"),
        ("- {key: [a], path: p}", "line 3: key is no single value"),
        ("- {key: a, to: p}", "line 3: to is no list of places"),
        ("- {key: a, to: [{part: 'slice(0, 0, 1)'}]}", "line 3: a place without a path"),
        ("- {key: a, to: [{path: p}], transform: unchanged}", "line 3: transform without a path"),
        ("- a", "line 3: a rule is no mapping"),
        ("- {key: a, path: p", "line "),
        ("- {key: !!python/object/apply:os.system [x], path: p}", "line 3: key is no single value"),
    ],
)
def test_what_is_wrong_in_itself(text, problem, tmp_path):
    (found,) = problems_of(tmp_path, text)
    assert problem in found


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("version: 2", "line 1: version is 2"),
        ("api: linen", "version is missing"),
        ("version: 1\napi: keras", "line 2: api is keras"),
    ],
)
def test_other_versions(version, problem, tmp_path):
    (found,) = problems_of(tmp_path, "- {key: a, drop: no}", version=version)
    assert problem in found


@pytest.mark.parametrize("text", ["", "[]", "5", "rules: []", "version: 1", "version: 1\nrules: 5"])
def test_no_mapping_at_all(text, tmp_path):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(MappingFileError):
        load_mapping(tmp_path / "m.yaml")


def test_no_file(tmp_path, refused):
    with refused(MappingFileError, "cannot be read"):
        load_mapping(tmp_path / "gone.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with refused(MappingFileError, "bytes.yaml"):
        load_mapping(tmp_path / "bytes.yaml")


def test_all_that_is_wrong_at_once(tmp_path):
    text = "- {key: a, color: red}\n- {key: b}\n- {key: (c, path: p}\n"
    lines = [problem.split(":")[0] for problem in problems_of(tmp_path, text)]
    assert lines == ["line 3", "line 3", "line 4", "line 5"]


INFOS = {key: TensorInfo((4, 3), "float32") for key in ("a.0.weight", "a.1.weight", "b")}


def test_all_that_does_not_fit_the_checkpoint(tmp_path):
    text = (
        "- {key: 'a\\..*', path: p}\n"
        "- {key: 'a\\.1\\.weight', path: q}\n"
        "- {key: unheard, path: r}\n"
        "- {key: older, drop: no}\n"
    )
    assert problems_of(tmp_path, text, INFOS) == (
        "a.1.weight is matched by the rules of lines 3 and 4",
        "b is matched by no rule",
    )
    assert [line.split(", ")[1] for line in rules(tmp_path, text).unused(INFOS)] == [
        "line 5: no key is matched by unheard"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "- {key: '.*', path: p}",
            "line 3: a.0.weight: its path p collides with that of a.1.weight, b",
        ),
        ("- {key: '(.*)', path: 'p/\\1', transform: 'transpose(2, 1, 0)'}", "3 axes expected"),
        ("- {key: '(.*)', path: 'p/\\1', part: 'slice(0, 2, 9)'}", "slice(0, 2, 9) is not in"),
        (
            "- {key: '(.*)', path: 'p', join: stack(0), index: '\\1'}",
            "the index 'a.0.weight' is no",
        ),
        (
            "- {key: 'a\\.(.).*', path: 'p', join: stack(0), index: '\\1'}\n- {key: b, tied: c}",
            "tied to c",
        ),
        ("- {key: 'a.*', drop: x}\n- {key: b, tied: a.0.weight}", "which is not mapped"),
        (
            "- {key: 'a\\.(.).*', path: p, join: stack(0), index: 5}\n- {key: b, drop: x}",
            "collides",
        ),
    ],
)
def test_what_does_not_fit(text, problem, tmp_path):
    found = problems_of(tmp_path, text, INFOS)
    assert any(problem in line for line in found), found
    assert all(line.startswith("line ") for line in found)


def test_a_mapping_of_ones_own(tmp_path):
    """Blocks stacked as nn.scan wants them, one tensor in two parts, one tied, one dropped."""
    text = r"""
- key: blocks\.(?P<block>\d+)\.weight
  path: params/blocks/kernel
  transform: transpose(1, 0)
  join: stack(0)
  index: \g<block>
- key: fused
  to:
  - {path: params/q, part: 'slice(0, 0, 2)'}
  - {path: params/k, part: 'slice(0, 2, 6)', transform: 'transpose(1, 0)'}
- {key: again, tied: fused}
- {key: .*ids, drop: recomputed}
"""
    infos = {f"blocks.{i}.weight": TensorInfo((4, 3), "float32") for i in (1, 0)}
    infos |= {key: TensorInfo((6, 2), "float32") for key in ("fused", "again")}
    infos["pos.ids"] = TensorInfo((5,), "int64")
    slots = rules(tmp_path, text).slots(infos)
    assert slots["blocks.1.weight"] == Slot(
        "blocks.1.weight",
        (4, 3),
        "",
        Outcome.MAPPED,
        (Target("params/blocks/kernel", Permute((1, 0)), None, Stack(0), 1),),
        evidence="mapping.yaml, line 4",
    )
    plan = make_plan("x", infos, slots)
    assert plan.counts == {"mapped": 3, "tied": 1, "dropped": 1, "refused": 0}
    shapes = {leaf.path: leaf.info.shape for leaf in plan.leaves}
    assert shapes == {"params/blocks/kernel": (2, 3, 4), "params/q": (2, 2), "params/k": (2, 4)}
    (tmp_path / "again.yaml").write_text(mapping_text(plan))
    again = load_mapping(tmp_path / "again.yaml").slots(infos)
    assert make_plan("x", infos, again) == plan


def test_a_number_that_is_folded_in_is_computed(tmp_path):
    text = r"""
- key: q\.(?P<block>\d+)
  path: params/q
  transform: transpose(1, 0) | times(0.3)
  join: stack(0)
  index: \g<block>
- {key: norm, path: params/norm, transform: plus(-1.0)}
"""
    random = np.random.default_rng(0)
    arrays = {f"q.{n}": random.normal(size=(4, 3)).astype(np.float32) for n in range(2)}
    arrays["norm"] = random.normal(size=6).astype(np.float32)
    rules(tmp_path, text)
    state = {key: torch.from_numpy(one) for key, one in arrays.items()}
    made = convert_to_pytree(state, mapping=tmp_path / "mapping.yaml")["params"]
    wanted = [np.float32(0.3 * np.float64(arrays[f"q.{n}"].T)) for n in range(2)]
    assert (made["q"] == np.stack(wanted)).all()
    assert (made["norm"] == arrays["norm"] - 1).all()
    found = problems_of(tmp_path, text, {"q.0": TensorInfo((4, 3), "int32")})
    assert any("only floating numbers" in line for line in found), found


def test_an_existing_file_is_not_overwritten(tmp_path):
    plan = make_plan("x", {}, {})
    save_mapping(plan, tmp_path / "m.yaml")
    with pytest.raises(OutputError):
        save_mapping(plan, tmp_path / "m.yaml")
    save_mapping(replace(plan, checkpoint="y"), tmp_path / "m.yaml", overwrite=True)
    assert "checkpoint: y" in (tmp_path / "m.yaml").read_text()


def test_neither_torch_nor_jax_is_needed(tmp_path):
    from safetensors.numpy import save_file

    save_file({"a.weight": np.ones((4, 3), np.float32)}, tmp_path / "m.safetensors")
    (tmp_path / "m.yaml").write_text(
        "version: 1\nrules:\n- {key: a.weight, path: params/a/kernel, transform: 'transpose(1, 0)'}"
    )
    script = f"""
import json, sys
for name in ("torch", "jax", "flax"):
    sys.modules[name] = None
from pathlib import Path
from converters.checkpoint import open_checkpoint
from converters.mapping.file import load_mapping
from converters.mapping import make_plan
read = open_checkpoint(Path({str(tmp_path / "m.safetensors")!r}))
plan = make_plan("m", read.infos, load_mapping({str(tmp_path / "m.yaml")!r}).slots(read.infos))
print(json.dumps([[leaf.path, leaf.read(read.read).shape] for leaf in plan.leaves]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == [["params/a/kernel", [3, 4]]]


def test_a_large_checkpoint_is_quick(tmp_path):
    """Five thousand keys, a hundred blocks: folding and matching stay far below a second each."""
    infos = {
        f"layers.{i}.part.{j}.weight": TensorInfo((4, 3), "float32")
        for i in range(100)
        for j in range(50)
    }
    slots = {
        key: Slot(
            key, (4, 3), "Linear", Outcome.MAPPED, (Target(f"params/{key.replace('.', '/')}"),)
        )
        for key in infos
    }
    plan = make_plan("x", infos, slots)
    save_mapping(plan, tmp_path / "m.yaml")
    mapping = load_mapping(tmp_path / "m.yaml")
    assert len(mapping.rules) == 1
    assert make_plan("x", infos, mapping.slots(infos)) == plan


PAGE = Path(__file__).parents[3] / "docs" / "weights" / "mapping.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_examples_of_the_page(example):
    text = example if example.startswith("version") else f"version: 1\nrules:\n{example}"
    parsed = parse_rules(text)
    assert parsed.problems == ()
    assert parsed.rules

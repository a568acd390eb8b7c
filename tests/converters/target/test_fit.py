"""What fits is decided by names, shapes and layer kinds; what does not, or is open, is all named."""

import json
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from torch import nn

from converters import Outcome, plan
from converters.checkpoint import StateDict, nest
from converters.checkpoint.reader import TensorInfo
from converters.errors import MisfitError
from converters.mapping.file import save_mapping
from converters.planning import planned
from converters.request import PlanOptions
from converters.target.fit import fit_plan
from converters.target.shapes import target_shapes
from converters.target.words import words_of


def fit(model, target, **options):
    shapes = {path: TensorInfo(shape, "float32") for path, shape in target.items()}
    return fit_plan(plan(model.state_dict(), model=model), shapes, **options)


def misfits(model, target, **options):
    with pytest.raises(MisfitError) as caught:
        fit(model, target, **options)
    return caught.value.misfits


def named(**modules):
    model = nn.Module()
    for name, module in modules.items():
        setattr(model, name, module)
    return model


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("encoder/layer_3/self_attn/q_proj", ("encoder", "block", "#", "self", "attention", "query")),
        ("Transformer/encoderblock_0/LayerNorm_1", ("transformer", "encoder", "block", "#", "norm", "#")),
        ("h/0/attn/c_attn", ("block", "#", "attention", "qkv")),
        ("text_model/layer_norm1", ("text", "norm", "#")),
        ("decoder/layers/mlp/wi_0", ("decoder", "block", "mlp", "gate")),
        ("blocks_0/attn/proj", ("block", "#", "attention", "out")),
        ("BatchNorm2d_0", ("norm", "#")),
    ],
)  # fmt: skip
def test_words(path, words):
    assert words_of(path).words == words


def test_numbered_layers_by_order_and_kind():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
    target = {}
    for index in range(3):
        target[f"params/Dense_{index}/kernel"] = (index + 2, index + 3)
        target[f"params/Dense_{index}/bias"] = (index + 3,)
    assert fit(model, target).moved["params/layers_2/kernel"] == "params/Dense_1/kernel"


def test_layers_of_several_kinds_in_one_list():
    model = nn.Sequential(nn.Conv2d(3, 4, (2, 3)), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5))
    shapes = target_shapes(LinenNet(), jax.ShapeDtypeStruct((1, 6, 7, 3), "float32"))
    moved = fit_plan(plan(model.state_dict(), model=model), shapes).moved
    assert moved["params/layers_0/kernel"] == "params/Conv_0/kernel"
    assert moved["params/layers_3/kernel"] == "params/Dense_0/kernel"


def test_equally_near_names_are_refused():
    model = named(head_left=nn.Linear(4, 4), head_right=nn.Linear(4, 4))
    lines = misfits(
        model,
        {f"params/head_{name}/{part}": shape for name in ("one", "two")
         for part, shape in (("kernel", (4, 4)), ("bias", (4,)))},
    )  # fmt: skip
    assert any("may be params/head_left" in line and "head_right" in line for line in lines)
    # One name that tells decides both.
    target = {f"params/head_{name}/{part}": shape for name in ("left", "two")
              for part, shape in (("kernel", (4, 4)), ("bias", (4,)))}  # fmt: skip
    moved = fit(model, target).moved
    assert moved["params/head_right/kernel"] == "params/head_two/kernel"


def test_a_shape_alone_is_no_evidence():
    """The last one left on both sides is not taken for the other if no name speaks for it."""
    model = named(dense=nn.Linear(4, 6), pooler=nn.Linear(4, 4))
    lines = misfits(
        model,
        {
            "params/dense/kernel": (4, 6),
            "params/dense/bias": (6,),
            "params/transform_predictions/kernel": (4, 4),
            "params/transform_predictions/bias": (4,),
        },
    )
    assert lines == (
        "missing: nothing for params/transform_predictions/kernel (4, 4)",
        "missing: nothing for params/transform_predictions/bias (4,)",
        "extra: no place for params/pooler/kernel (4, 4)",
        "extra: no place for params/pooler/bias (4,)",
    )


def numbered(*shapes):
    """Dense layers as linen's compact modules name them."""
    target = {}
    for index, (inputs, outputs) in enumerate(shapes):
        target[f"params/Dense_{index}/kernel"] = (inputs, outputs)
        target[f"params/Dense_{index}/bias"] = (outputs,)
    return target


def test_layers_without_names_are_paired_by_shapes_that_are_unique():
    model = named(down=nn.Linear(4, 5), up=nn.Linear(3, 4))
    done = fit(model, numbered((3, 4), (4, 5)))
    assert done.moved["params/up/kernel"] == "params/Dense_0/kernel"
    assert done.moved["params/down/bias"] == "params/Dense_1/bias"
    assert any("params/Dense_0/kernel is params/up/kernel" in note for note in done.notes)
    # The other side may be the one without names.
    unnamed = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
    target = {"params/up/kernel": (3, 4), "params/up/bias": (4,)}
    target |= {"params/down/kernel": (4, 5), "params/down/bias": (5,)}
    assert fit(unnamed, target).moved["params/layers_2/kernel"] == "params/down/kernel"


def test_layers_without_names_and_of_equal_shapes_are_refused():
    model = named(up=nn.Linear(3, 4), other=nn.Linear(3, 4), down=nn.Linear(4, 5))
    lines = misfits(model, numbered((3, 4), (3, 4), (4, 5)))
    assert any("Dense_0" in line for line in lines)
    # A side that is square may be turned; which, nothing says.
    lines = misfits(named(up=nn.Linear(4, 4), down=nn.Linear(4, 5)), numbered((4, 5)))
    assert any("no place for params/up/kernel" in line for line in lines)


def test_all_that_does_not_fit_at_once():
    model = named(stem=nn.Linear(3, 4), middle=nn.Linear(4, 5), norm=nn.LayerNorm(5))
    lines = misfits(
        model,
        {
            "params/stem/kernel": (3, 6),
            "params/stem/bias": (6,),
            "params/middle/kernel": (4, 5),
            "params/norm/scale": (5,),
            "params/norm/bias": (5,),
            "params/table/embedding": (9, 5),
        },
    )
    assert set(lines) == {
        "wrong shape: params/stem/kernel is (3, 6), params/stem/kernel (3, 4)",
        "wrong shape: params/stem/bias is (6,), params/stem/bias (4,)",
        "missing: nothing for params/middle/kernel (4, 5)",
        "missing: nothing for params/table/embedding (9, 5)",
        "extra: no place for params/stem/kernel (3, 4)",
        "extra: no place for params/stem/bias (4,)",
        "extra: no place for params/middle/kernel (4, 5)",
        "extra: no place for params/middle/bias (5,)",
    }


def test_keys_that_the_target_has_no_use_for():
    model = named(body=nn.Linear(3, 4), head=nn.Linear(4, 5))
    target = {"params/body/kernel": (3, 4), "params/body/bias": (4,)}
    assert any("params/head/kernel" in line for line in misfits(model, target))
    done = fit(model, target, drop=[r"^head\."])
    assert done.plan.counts == {"mapped": 2, "tied": 0, "dropped": 2, "refused": 0}
    row = next(row for row in done.plan.rows if row.key == "head.bias")
    assert (row.outcome, row.note) == (Outcome.DROPPED, r"dropped by the user (^head\.)")


class Turned(nn.Module):
    """A layer of a user's own, whose weight is (in, out) in torch."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))


def test_a_square_weight_of_ones_own_is_arranged_as_the_others():
    model = named(up=Turned(4, 6), mix=Turned(4, 4))
    turned = {"params/up/kernel": (6, 4), "params/mix/kernel": (4, 4)}
    leaves = {leaf.path: leaf for leaf in fit(model, turned).plan.leaves}
    assert str(leaves["params/mix/kernel"].pieces[0].layout) == "transpose(1, 0)"
    straight = {"params/up/kernel": (4, 6), "params/mix/kernel": (4, 4)}
    leaves = {leaf.path: leaf for leaf in fit(model, straight).plan.leaves}
    assert str(leaves["params/mix/kernel"].pieces[0].layout) == "unchanged"
    (line,) = misfits(named(mix=Turned(4, 4)), {"params/mix/kernel": (4, 4)})
    assert "square, so whether it is params/mix/weight transposed is unknown" in line


def test_a_linear_is_never_turned_twice():
    model = named(dense=nn.Linear(4, 6, bias=False))
    (wrong, _) = misfits(model, {"params/dense/kernel": (6, 4)})
    assert wrong == "wrong shape: params/dense/kernel is (6, 4), params/dense/kernel (4, 6)"


def test_the_axis_of_stacked_layers_is_asked_where_shapes_leave_it_open():
    model = named(layers=nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(3)))
    target = {"params/layers/kernel": (3, 3, 3)}
    (line,) = misfits(model, target)
    assert "does not say along which axis" in line
    (leaf,) = fit(model, target, scan_axis=1).plan.leaves
    assert str(leaf.join) == "stack(1)"
    # Another array tells.
    for layer in model.layers:
        layer.bias = nn.Parameter(torch.zeros(3))
    model.layers.append(nn.Linear(3, 3))
    for axis, shape in enumerate(((4, 3, 3), (3, 4, 3), (3, 3, 4))):
        bias = (4, 3) if axis == 0 else (3, 4)
        leaves = fit(model, {"params/layers/kernel": shape, "params/layers/bias": bias}).plan.leaves
        assert {str(leaf.join) for leaf in leaves if leaf.path.endswith("kernel")} == {
            f"stack({axis})"
        }


def test_separate_query_key_value_joined():
    attention = named(q_proj=nn.Linear(4, 4), k_proj=nn.Linear(4, 4), v_proj=nn.Linear(4, 4))
    model = named(attn=attention)
    done = fit(model, {"params/attn/qkv/kernel": (4, 12), "params/attn/qkv/bias": (12,)})
    state = {key: torch.randn(tensor.shape) for key, tensor in model.state_dict().items()}
    read = StateDict("x", state).read
    kernel = next(leaf for leaf in done.plan.leaves if leaf.path.endswith("kernel")).read(read)
    expected = [state[f"attn.{name}_proj.weight"].numpy().T for name in "qkv"]
    np.testing.assert_array_equal(kernel, np.concatenate(expected, 1))


class TorchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, (2, 3)), nn.BatchNorm2d(4))
        self.classifier = nn.Linear(4, 5)

    def forward(self, x):
        return self.classifier(torch.relu(self.features(x)).mean((2, 3)))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (2, 3), padding="VALID", rngs=rngs)
        self.bn = nnx.BatchNorm(4, use_running_average=True, epsilon=1e-5, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, 5, rngs=rngs)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.bn(self.conv(x))).mean((1, 2)))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Conv(4, (2, 3), padding="VALID")(x)
        x = linen.BatchNorm(use_running_average=True, epsilon=1e-5)(x)
        return linen.Dense(5)(jax.nn.relu(x).mean((1, 2)))


def test_an_nnx_model_computes_the_same():
    torch.manual_seed(0)
    model = TorchNet().eval()
    model.features[1].running_mean.normal_()
    model.features[1].running_var.uniform_(0.5, 1.5)
    done = fit_plan(plan(model.state_dict(), model=model, to="nnx"), target_shapes(NnxNet))
    read = StateDict("x", model.state_dict()).read
    tree = nest((leaf.path, jnp.array(leaf.read(read), copy=True)) for leaf in done.plan.leaves)
    net = NnxNet(nnx.Rngs(0))
    nnx.update(net, tree)
    images = np.random.default_rng(0).standard_normal((2, 3, 6, 7)).astype(np.float32)
    expected = model(torch.from_numpy(images)).detach().numpy()
    with jax.default_matmul_precision("highest"):
        found = net(images.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_compact_names_of_linen():
    done = fit_plan(
        plan(TorchNet().state_dict(), model=TorchNet()),
        target_shapes(LinenNet(), jax.ShapeDtypeStruct((1, 6, 7, 3), "float32")),
    )
    assert done.moved["params/features/layers_0/kernel"] == "params/Conv_0/kernel"
    assert done.moved["batch_stats/features/layers_1/var"] == "batch_stats/BatchNorm_0/var"
    assert done.moved["params/classifier/kernel"] == "params/Dense_0/kernel"


def test_another_dtype_is_said():
    shapes = {"params/d/kernel": TensorInfo((2, 3), "bfloat16")}
    model = named(d=nn.Linear(2, 3, bias=False))
    done = fit_plan(plan(model.state_dict(), model=model), shapes)
    assert done.notes == (
        "params/d/kernel is float32 as in the checkpoint; the target has bfloat16",
    )


def attention(*names):
    def block():
        return named(attn=named(**{name: nn.Linear(4, 4, bias=False) for name in names}))

    return named(layers=nn.ModuleList([block() for _ in range(2)]))


def attention_shapes(*names):
    return {f"params/layers_{i}/attn/{name}/kernel": (4, 4) for i in range(2) for name in names}


def test_unknown_names_are_paired_by_elimination_only_and_named():
    model = attention("q_proj", "k_proj", "o_proj")
    done = fit(model, attention_shapes("query", "key", "zork"))
    assert done.moved["params/layers_0/attn/o_proj/kernel"] == "params/layers_0/attn/zork/kernel"
    (note,) = done.notes
    assert "attn/zork/kernel and 1 more like it is params/layers_0/attn/o_proj" in note
    # With two of them nothing says which is which, however rare their words are elsewhere.
    lines = misfits(model, attention_shapes("query", "zork", "stuff"))
    assert any("zork" in line and "k_proj" in line and "o_proj" in line for line in lines)


def test_classes_in_a_whole_module_and_a_mapping_tell_what_names_do_not(tmp_path):
    """A transposed convolution is turned round; its tensor alone looks like any other."""
    torch.manual_seed(0)
    layers = {
        "stem": nn.Conv2d(3, 4, 3),
        "deep": nn.ConvTranspose2d(4, 4, 3),
        "head": nn.Linear(4, 2),
    }
    model = nn.Sequential(OrderedDict(layers))
    torch.save(model, tmp_path / "whole.pt")
    torch.save(model.state_dict(), tmp_path / "state.pt")
    shapes = {"stem/kernel": [3, 3, 3, 4], "deep/kernel": [3, 3, 4, 4], "head/kernel": [4, 2]}
    shapes |= {"stem/bias": [4], "deep/bias": [4], "head/bias": [2]}
    target = tmp_path / "shapes.json"
    target.write_text(
        json.dumps({f"params/{name}": [its, "float32"] for name, its in shapes.items()})
    )
    save_mapping(
        plan(model.state_dict(), model=model), tmp_path / "mapping.yaml"
    )  # as a port has it

    def deep(checkpoint, **how):
        made = planned(tmp_path / checkpoint, PlanOptions(target=str(target), **how))
        (leaf,) = (one for one in made.plan.leaves if one.path == "params/deep/kernel")
        return leaf.read(made.checkpoint.read)

    by_mapping = deep("state.pt", mapping=tmp_path / "mapping.yaml")
    turned = model.deep.weight.detach().numpy()[:, :, ::-1, ::-1].transpose(2, 3, 0, 1)
    assert (deep("whole.pt") == turned).all()
    assert (by_mapping == turned).all()
    assert not (deep("state.pt") == turned).all()

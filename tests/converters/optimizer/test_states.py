"""What a state does not say is asked for, and what optax cannot go on with is refused."""

import os

import numpy as np
import optax
import pytest
import torch
from torch import nn

from converters import plan
from converters.errors import CheckpointHoldsCodeError, OptimizerError, OutputError
from converters.layers.join import SUM
from converters.mapping import Outcome, make_plan
from converters.mapping.module_tree import Slot, Target
from converters.optimizer.convert import convert_optimizer, optimizer_recipe, optimizer_to_torch
from converters.optimizer.load import load_optimizer, save_optimizer


def stepped(model, optimizer, times=2):
    for _ in range(times):
        for index, parameter in enumerate(p for p in model.parameters() if p.requires_grad):
            values = torch.arange(parameter.numel(), dtype=parameter.dtype)
            parameter.grad = (values.reshape(parameter.shape) + index) / 10
        optimizer.step()
    return optimizer.state_dict()


def net(width=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 4))


def converted(net, state, /, **options):
    return convert_optimizer(state, plan=plan(net.state_dict(), model=net), **options)


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, **options)


def test_moments_are_arranged_as_their_weights(tmp_path):
    model = net()
    state = stepped(model, adamw(model))
    path = tmp_path / "opt.safetensors"
    done = converted(model, state, output=path)
    assert (done.kind, done.steps, done.arrays) == ("adamw", {"group0": 2}, 13)
    params = {
        "layers_0": {"kernel": np.zeros((2, 3), "f4"), "bias": np.zeros(3, "f4")},
        "layers_1": {"scale": np.zeros(3, "f4"), "bias": np.zeros(3, "f4")},
        "layers_2": {"kernel": np.zeros((3, 4), "f4"), "bias": np.zeros(4, "f4")},
    }
    loaded = load_optimizer(path, done.recipe.build(params), params)
    assert int(loaded[0].count) == 2
    np.testing.assert_array_equal(
        loaded[0].mu["layers_2"]["kernel"], state["state"][4]["exp_avg"].numpy().T
    )
    assert optimizer_recipe(path).text == done.recipe.text


def test_which_optimizer_is_asked_where_the_state_does_not_say():
    model = net()
    state = stepped(model, adamw(model))
    del state["param_groups"][0]["decoupled_weight_decay"]  # as before torch 2.7
    with pytest.raises(OptimizerError, match="--optimizer-kind adam or adamw"):
        converted(model, state)
    assert converted(model, state, optimizer="adamw").recipe.text.startswith("optax.adamw")
    assert "add_decayed_weights" in converted(model, state, optimizer="adam").recipe.text
    with pytest.raises(OptimizerError, match="it is of adamw"):
        converted(model, stepped(model, adamw(model)), optimizer="lion")


def test_unknown_optimizers_are_refused(refused):
    model = net()
    state = stepped(model, torch.optim.RMSprop(model.parameters()))
    with refused(OptimizerError, "square_avg", "known are SGD, Adam"):
        converted(model, state)
    with refused(OptimizerError, "has no state yet"):
        converted(model, adamw(model).state_dict())
    with refused(OptimizerError, "has no optimizer state"):
        converted(model, model.state_dict())


def test_a_model_that_does_not_fit_is_listed(refused):
    model, other = net(), net(5)
    state = stepped(other, adamw(other))
    with refused(OptimizerError, "position 0 has moments of (5, 2), 0.weight is (3, 2)"):
        converted(model, state)
    state["param_groups"][0]["params"].pop()
    del state["state"][5]
    with refused(OptimizerError, "the optimizer has 5 parameters, the model 6"):
        converted(net(5), state)


def test_frozen_parameters(tmp_path):
    """Left out by the script, or passed and never given a gradient."""
    model = net()
    model[0].requires_grad_(False)
    free = [p for p in model.parameters() if p.requires_grad]
    left_out = stepped(model, torch.optim.AdamW(free, lr=1e-3))
    passed = stepped(model, adamw(model))
    for index, state in enumerate((left_out, passed)):
        path = tmp_path / f"{index}.safetensors"
        done = converted(model, state, model=model, output=path)
        assert done.recipe.labels["params/layers_0/kernel"] == "frozen"
        assert '"frozen": optax.set_to_zero()' in done.recipe.text
        assert "params/layers_0/kernel" in done.recipe.notes[0]
        back = optimizer_to_torch(path)
        assert back["state"].keys() == state["state"].keys()
    with pytest.raises(OptimizerError, match="has 4 parameters, the model 6"):
        converted(model, left_out)  # without the module nothing says which
    order = [name for name, p in model.named_parameters() if p.requires_grad]
    assert converted(model, left_out, order=order).arrays == 9


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5)
            self.head.weight = self.embed.weight

    model = Tied()
    state = stepped(model, adamw(model))
    for given in (None, model):
        done = converted(model, state, model=given)
        assert set(done.recipe.labels) == {"params/embed/embedding", "params/head/bias"}
    stored = {key: t for key, t in model.state_dict().items() if key != "embed.weight"}
    done = convert_optimizer(state, plan=plan(stored, model=model), model=model)
    assert done.arrays == 5


def test_groups_by_shape_and_by_name():
    model = net()
    parameters = dict(model.named_parameters())
    matrices = {name: p for name, p in parameters.items() if p.ndim > 1}
    vectors = {name: p for name, p in parameters.items() if p.ndim == 1}

    def of(first, second, names=False):
        groups = [
            {"params": list(its.items() if names else its.values()), "weight_decay": decay}
            for its, decay in ((first, 0.1), (second, 0.0))
        ]
        return stepped(model, torch.optim.AdamW(groups, lr=1e-3))

    with pytest.raises(OptimizerError, match='fit the shapes: "registration", "sorted"'):
        converted(model, of(matrices, vectors))
    done = converted(model, of(matrices, vectors), order="registration")
    assert done.recipe.labels["params/layers_2/kernel"] == "group0"
    assert done.recipe.labels["params/layers_1/scale"] == "group1"
    # The norm's scale with the matrices: its shape is that of the biases, so only names tell.
    weights = {name: p for name, p in parameters.items() if name.endswith("weight")}
    biases = {name: p for name, p in parameters.items() if name.endswith("bias")}
    with pytest.raises(OptimizerError, match="fit the model in several ways"):
        converted(model, of(weights, biases))
    for done in (
        converted(model, of(weights, biases), order=[*weights, *biases]),
        converted(model, of(weights, biases, names=True)),
    ):
        assert done.recipe.labels["params/layers_1/scale"] == "group0"
        assert done.recipe.labels["params/layers_1/bias"] == "group1"


def test_parameters_at_several_steps(tmp_path):
    model = net()
    optimizer = adamw(model)
    model[0].requires_grad_(False)
    stepped(model, optimizer, 3)
    model[0].requires_grad_(True)
    state = stepped(model, optimizer, 2)
    path = tmp_path / "opt.safetensors"
    done = converted(model, state, output=path)
    assert done.steps == {"group0_step2": 2, "group0_step5": 5}
    params = {
        f"layers_{i}": {name: np.zeros(shape, "f4") for name, shape in its.items()}
        for i, its in enumerate(
            (
                {"kernel": (2, 3), "bias": 3},
                {"scale": 3, "bias": 3},
                {"kernel": (3, 4), "bias": 4},
            )
        )
    }
    tx = done.recipe.build(params)
    loaded = load_optimizer(path, tx, params)
    assert int(loaded.inner_states["group0_step5"].inner_state[0].count) == 5
    again = save_optimizer(tmp_path / "again.safetensors", loaded, like=path)
    back = optimizer_to_torch(again)
    assert [float(back["state"][i]["step"]) for i in range(6)] == [2, 2, 5, 5, 5, 5]
    with pytest.raises(OptimizerError, match="nothing for"):  # one count for both
        load_optimizer(path, optax.adamw(1e-3), params)


def sum_slots():
    def slot(key, index):
        targets = (Target("params/h/bias", join=SUM, index=index),)
        return Slot(key, (3,), "LSTM", Outcome.MAPPED, targets)

    return {"b_ih": slot("b_ih", 0), "b_hh": slot("b_hh", 1)}


class TwoBiases(nn.Module):
    def __init__(self):
        super().__init__()
        self.b_ih = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.b_hh = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))


def two_bias_steps(model, optimizer, times):
    for _ in range(times):
        optimizer.zero_grad()
        ((model.b_ih + model.b_hh - torch.tensor([1.0, 2.0, 3.0])) ** 2).sum().backward()
        optimizer.step()
    return (model.b_ih + model.b_hh).detach().numpy()


def sum_plan(model):
    from converters.checkpoint.reader import TensorInfo

    infos = {key: TensorInfo((3,), "float32") for key in model.state_dict()}
    return make_plan("net", infos, sum_slots())


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.2),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    ],
)
def test_a_sum_of_two_biases_moves_by_both_steps(tmp_path, make):
    model = TwoBiases()
    optimizer = make(model.parameters())
    bias = two_bias_steps(model, optimizer, 5).copy()
    path = tmp_path / "opt.safetensors"
    before = optimizer.state_dict()
    done = convert_optimizer(before, plan=sum_plan(model), output=path)
    assert list(done.steps) == ["group0_sum2"]
    assert "times their number" in done.recipe.notes[-1]
    params = {"h": {"bias": bias}}
    tx = done.recipe.build(params)
    state = load_optimizer(path, tx, params)
    for _ in range(20):
        grads = {"h": {"bias": 2 * (params["h"]["bias"] - np.array([1, 2, 3], "f4"))}}
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    expected = two_bias_steps(model, optimizer, 20)
    np.testing.assert_allclose(params["h"]["bias"], expected, rtol=1e-5)
    back = optimizer_to_torch(save_optimizer(tmp_path / "x.safetensors", state, like=path))
    optimizer.load_state_dict(back)


def test_sums_that_do_not_move_as_one_are_refused():
    model = TwoBiases()
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    two_bias_steps(model, optimizer, 3)
    with pytest.raises(OptimizerError, match="weight decay enters the moments"):
        convert_optimizer(optimizer.state_dict(), plan=sum_plan(model), order="registration")
    optimizer = torch.optim.AdamW(model.parameters())
    state = stepped(model, optimizer)
    with pytest.raises(OptimizerError, match=r"moments \(exp_avg\) differ"):
        convert_optimizer(state, plan=sum_plan(model), order="registration")


def test_files(tmp_path, refused):
    model = net()
    state = stepped(model, adamw(model, amsgrad=True))
    path = tmp_path / "training.pt"
    torch.save({"model": model.state_dict(), "optimizer": state, "epoch": 3}, path)
    out = tmp_path / "opt.safetensors"
    converted(model, path, output=out)
    with refused(OutputError, "exists already"):
        converted(model, path, output=out)
    with refused(OptimizerError, 'no optimizer state under "model"'):
        converted(model, path, key="model")
    back = optimizer_to_torch(out, tmp_path / "back.pt")
    again = torch.load(tmp_path / "back.pt", weights_only=True)
    assert torch.equal(again["state"][0]["max_exp_avg_sq"], state["state"][0]["max_exp_avg_sq"])
    assert back["param_groups"] == state["param_groups"]
    torch.save({"optimizer": state, "arguments": Unknown()}, path)
    assert converted(model, path).arrays == converted(model, state).arrays
    torch.save({"optimizer": state, "arguments": Unsafe()}, path)
    with refused(CheckpointHoldsCodeError, "nothing was executed"):
        converted(model, path)


class Unknown:
    pass


class Unsafe:
    def __reduce__(self):
        return os.system, ("true",)


def test_another_state_is_refused(tmp_path):
    model = net()
    path = tmp_path / "opt.safetensors"
    made = plan(model.state_dict(), model=model)
    convert_optimizer(stepped(model, adamw(model)), plan=made, output=path)
    params = {"layers_0": {"kernel": np.zeros((2, 3), "f4")}}
    with pytest.raises(OptimizerError, match="mu/params/layers_2/kernel has no place"):
        load_optimizer(path, optax.adam(1e-3), params)
    with pytest.raises(OptimizerError, match="has no place"):
        load_optimizer(path, optax.sgd(1e-3), params)
    with pytest.raises(OptimizerError, match="is missing"):
        save_optimizer(tmp_path / "x", optax.adam(1e-3).init(params), like=path)

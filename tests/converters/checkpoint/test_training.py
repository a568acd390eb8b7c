"""The weights in what training loops save: the only state dict is taken, several are named."""

import collections

import pytest
import torch

from converters.checkpoint import LazyTensor, StateDict, open_checkpoint
from converters.errors import NotAStateDictError

WEIGHTS = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.ones(2)}
OPTIMIZER = {
    "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2, 3)}},
    "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}],
}


def saved(folder, value):
    path = folder / "x.ckpt"
    torch.save(value, path)
    return path


LAYOUTS = {
    "plain": (WEIGHTS, ""),
    "timm": (
        {"epoch": 3, "arch": "vit", "state_dict": WEIGHTS, "optimizer": OPTIMIZER},
        "state_dict",
    ),
    "Lightning": (
        {
            "epoch": 1,
            "global_step": 10,
            "pytorch-lightning_version": "2.4.0",
            "state_dict": WEIGHTS,
            "loops": {"fit_loop": {"state_dict": {}}},
            "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
            "optimizer_states": [OPTIMIZER],
            "lr_schedulers": [{"last_epoch": 1}],
            "hyper_parameters": {"width": 3},
        },
        "state_dict",
    ),
    "DeepSpeed": (
        {
            "module": WEIGHTS,
            "buffer_names": [],
            "optimizer": None,
            "param_shapes": [{"layer.weight": torch.Size([2, 3])}],
            "global_steps": 4,
        },
        "module",
    ),
    "random states": (
        {
            "model": WEIGHTS,
            "rng_state": torch.get_rng_state(),
            "torch_random": {"cpu": torch.get_rng_state()},
            "loss": torch.tensor(0.1),
        },
        "model",
    ),
    "only an average": (
        {"ema": {"decay": 0.9, "updates": torch.tensor(1), "state_dict": WEIGHTS}},
        "ema.state_dict",
    ),
}


@pytest.mark.parametrize(("layout", "where"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_only_state_dict_is_taken(tmp_path, layout, where):
    checkpoint = open_checkpoint(saved(tmp_path, layout))
    assert checkpoint.entry == where
    assert list(checkpoint.infos) == list(WEIGHTS)
    assert checkpoint.read("layer.weight").tolist() == WEIGHTS["layer.weight"].tolist()


def test_several_are_refused_with_the_list_and_a_key_decides(tmp_path, refused):
    average = {"layer.weight": torch.zeros(2, 3)}
    path = saved(
        tmp_path,
        {"model": WEIGHTS, "ema": {"state_dict": average}, "optimizer": OPTIMIZER, "lr": 0.1},
    )
    with refused(NotAStateDictError, "2 state dicts", "--key: model, ema.state_dict"):
        open_checkpoint(path)
    for key in ("ema.state_dict", "ema"):
        checkpoint = open_checkpoint(path, key=key)
        assert checkpoint.entry == "ema.state_dict"
        assert checkpoint.read("layer.weight").tolist() == [[0.0] * 3] * 2
    assert open_checkpoint(path, key="model").entry == "model"
    for key in ("optimizer", "optimizer.state", "nothing", "ema.nothing"):
        with refused(NotAStateDictError, f'under "{key}"', "choose model, ema.state_dict"):
            open_checkpoint(path, key=key)


def test_names_with_dots_are_understood(tmp_path):
    path = saved(tmp_path, {"a.b": {"c": WEIGHTS}, "d": WEIGHTS})
    assert open_checkpoint(path, key="a.b.c").entry == "a.b.c"


def test_tensors_beside_a_state_dict_are_not_passed_over(tmp_path, refused):
    path = saved(tmp_path, {"mean": torch.ones(3), "model": WEIGHTS})
    with refused(NotAStateDictError, "--key: ., model"):
        open_checkpoint(path)
    top = open_checkpoint(path, key=".")
    assert list(top.infos) == ["mean"]
    assert top.others == {"model": "dict of 2"}


def test_what_is_no_tensor_is_told_and_does_not_matter(tmp_path):
    value = collections.OrderedDict(
        WEIGHTS, epoch=3, lr=0.1, name="x", none=None, **{"layer._extra_state": torch.ones(2)}
    )
    value["_metadata"] = {"": {"version": 1}}
    checkpoint = open_checkpoint(saved(tmp_path, value))
    assert list(checkpoint.infos) == list(WEIGHTS)
    assert checkpoint.others == {
        "epoch": "int 3",
        "lr": "float 0.1",
        "name": "str of 1",
        "none": "None",
        "layer._extra_state": "tensor 2 float32",
        "_metadata": "dict of 1",
    }
    in_memory = StateDict("it", {**WEIGHTS, "epoch": 3})
    assert in_memory.others == {"epoch": "a int"}


def test_the_rest_of_a_training_checkpoint_is_at_hand(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, {"m": WEIGHTS, "o": OPTIMIZER, "epoch": 3}))
    assert set(checkpoint.training) == {"o", "epoch"}
    assert checkpoint.training["epoch"] == 3
    optimizer = checkpoint.training["o"]
    assert optimizer["param_groups"] == OPTIMIZER["param_groups"]
    moment = optimizer["state"][0]["exp_avg"]
    assert isinstance(moment, LazyTensor)
    assert moment.info.shape == (2, 3)
    assert moment.read().tolist() == [[1.0] * 3] * 2


def test_an_optimizer_alone_is_no_state_dict(tmp_path, refused):
    with refused(NotAStateDictError, "is an optimizer's state"):
        open_checkpoint(saved(tmp_path, OPTIMIZER))


def test_shared_references_are_visited_once(tmp_path, refused):
    node = {"lr": 0.1}
    for _ in range(60):  # 2**60 ways to the innermost dict
        node = {"a": node, "b": node}
    with refused(NotAStateDictError, "without tensors"):
        open_checkpoint(saved(tmp_path, node))


def test_a_dict_that_holds_itself(tmp_path):
    looped = {"model": dict(WEIGHTS)}
    looped["self"] = looped
    assert open_checkpoint(saved(tmp_path, looped)).entry == "model"

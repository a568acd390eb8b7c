"""Prefixes of wrappers go, what may be the model's own stays, and nothing is merged."""

import pytest
import torch
from torch import nn

from converters.checkpoint import clean
from converters.errors import DuplicateKeyError

MODEL = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
WANTED = set(MODEL.state_dict())


def put(prefix, keys=WANTED):
    return [prefix + key for key in sorted(keys)]


@pytest.mark.parametrize(
    ("prefix", "removed"),
    [
        ("", ()),
        ("module.", ("module.",)),
        ("_orig_mod.", ("_orig_mod.",)),
        ("module._orig_mod.", ("module.", "_orig_mod.")),
        ("_orig_mod.module.", ("_orig_mod.", "module.")),
        ("_fsdp_wrapped_module.", ("_fsdp_wrapped_module.",)),
        ("model.", ("model.",)),
        ("model._orig_mod.module.", ("model.", "_orig_mod.", "module.")),
        ("_forward_module.model.", ("_forward_module.", "model.")),
    ],
)
def test_leading_prefixes_go_and_can_be_given_back(prefix, removed):
    cleaned = clean(put(prefix), WANTED)
    assert cleaned.names == {prefix + key: key for key in sorted(WANTED)}
    assert cleaned.removed == removed


@pytest.mark.parametrize("known", [True, False])
def test_what_real_wrappers_put(known):
    compiled = torch.compile(MODEL, backend="eager")
    parallel = nn.DataParallel(compiled)
    keys = list(parallel.state_dict())
    assert keys[0] == "module._orig_mod.0.weight"
    cleaned = clean(keys, WANTED if known else None)
    assert list(cleaned.names.values()) == list(MODEL.state_dict())


def test_an_averaged_model():
    averaged = torch.optim.swa_utils.AveragedModel(MODEL)
    names = clean(averaged.state_dict()).names
    assert set(names.values()) == WANTED | {"n_averaged"}


def test_marks_in_the_middle_go():
    key = "module._orig_mod.layer.0._fsdp_wrapped_module._checkpoint_wrapped_module.weight"
    assert clean([key]).names[key] == "layer.0.weight"
    assert clean(["a._orig_mod.w"], {"a.w"}).names == {"a._orig_mod.w": "a.w"}


def test_module_in_the_middle_goes_only_if_the_model_says_so():
    assert clean(["backbone.module.w"], {"backbone.w"}).names == {"backbone.module.w": "backbone.w"}
    assert clean(["backbone.module.w"]).names == {"backbone.module.w": "backbone.module.w"}


def test_the_models_own_names_stay():
    keys = ["model.embed.weight", "model.norm.weight", "lm_head.weight"]
    for wanted in (None, set(keys)):
        cleaned = clean(keys, wanted)
        assert cleaned.names == {key: key for key in keys}
        assert cleaned.removed == ()
    own = ["module.weight", "_orig_mod.weight"]
    assert clean(own, set(own)).names == {key: key for key in own}


def test_a_prefix_that_some_keys_lack_goes_from_the_others():
    cleaned = clean([*put("model."), "loss.weight"], WANTED)
    assert cleaned.names == {
        **{f"model.{key}": key for key in sorted(WANTED)},
        "loss.weight": "loss.weight",
    }


def test_module_stays_without_a_model_unless_all_keys_have_it():
    assert clean(["module.w", "head.w"]).removed == ()


def test_a_prefix_that_fits_nothing_stays():
    assert clean(["model.x", "model.y"], {"a", "b"}).removed == ()


@pytest.mark.parametrize("wanted", [None, {"w"}])
def test_two_keys_that_become_one_are_refused(wanted, refused):
    with refused(DuplicateKeyError, "_orig_mod.w and _fsdp_wrapped_module.w are both w"):
        clean(["_orig_mod.w", "_fsdp_wrapped_module.w"], wanted)


def test_many_keys():
    keys = [f"module.layers.{index}.weight" for index in range(100_000)]
    wanted = {key.removeprefix("module.") for key in keys}
    assert set(clean(keys, wanted).names.values()) == wanted

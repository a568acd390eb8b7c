"""Models in the styles that people write: nothing may be taken for what it is not."""

import pytest
import torch
from torch import nn

from converters.checkpoint.reader import TensorInfo
from converters.inference import infer, parse_assumptions
from converters.mapping import Outcome, read_slots


def block(*names_and_layers):
    module = nn.Module()
    for name, layer in names_and_layers:
        if isinstance(layer, nn.Parameter):
            module.register_parameter(name, layer)
        else:
            module.add_module(name, layer)
    return module


def decoder_only(bias):
    """GPT as most teach it: Linear named as GPT-2's Conv1D, a causal mask among the weights."""
    attention = block(
        ("c_attn", nn.Linear(12, 36, bias=bias)), ("c_proj", nn.Linear(12, 12, bias=bias))
    )
    attention.register_buffer("bias", torch.ones(1, 1, 5, 5))
    mlp = block(("c_fc", nn.Linear(12, 48, bias=bias)), ("c_proj", nn.Linear(48, 12, bias=bias)))
    layer = block(("ln_1", nn.LayerNorm(12, bias=bias)), ("attn", attention), ("mlp", mlp))
    model = block(
        ("transformer", block(("wte", nn.Embedding(31, 12)), ("wpe", nn.Embedding(9, 12)))),
        ("lm_head", nn.Linear(12, 31, bias=False)),
    )
    model.transformer.add_module("h", nn.ModuleList([layer]))
    model.lm_head.weight = model.transformer.wte.weight
    return model


def swish_decoder():
    attention = block(*((f"w{it}", nn.Linear(12, 12, bias=False)) for it in "qkvo"))
    mlp = block(
        ("w1", nn.Linear(12, 20, bias=False)),
        ("w2", nn.Linear(20, 12, bias=False)),
        ("w3", nn.Linear(12, 20, bias=False)),
    )
    layer = block(("attention", attention), ("feed_forward", mlp), ("ffn_norm", nn.RMSNorm(12)))
    return block(
        ("tok_embeddings", nn.Embedding(31, 12)),
        ("layers", nn.ModuleList([layer])),
        ("norm", nn.RMSNorm(12)),
        ("output", nn.Linear(12, 31, bias=False)),
    )


def residual_net():
    def convolution(inputs, outputs, side):
        return nn.Conv2d(inputs, outputs, side, bias=False)

    def stage(inputs, outputs):
        layer = block(
            ("conv1", convolution(inputs, outputs, 3)),
            ("bn1", nn.BatchNorm2d(outputs)),
            ("conv2", convolution(outputs, outputs, 3)),
            ("bn2", nn.BatchNorm2d(outputs)),
            ("downsample", nn.Sequential(convolution(inputs, outputs, 1), nn.BatchNorm2d(outputs))),
        )
        return nn.Sequential(layer)

    return block(
        ("conv1", convolution(3, 8, 7)),
        ("bn1", nn.BatchNorm2d(8)),
        ("layer1", stage(8, 8)),
        ("layer2", stage(8, 16)),
        ("fc", nn.Linear(16, 10)),
    )


def generator():
    return block(
        (
            "main",
            nn.Sequential(
                nn.ConvTranspose2d(10, 16, 4, bias=False),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.ConvTranspose2d(16, 16, 4, bias=False),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.ConvTranspose2d(16, 3, 4, bias=False),
            ),
        )
    )


def autoencoder():
    return block(
        ("encoder", nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))),
        (
            "decoder",
            nn.Sequential(nn.ConvTranspose2d(8, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 1, 3)),
        ),
    )


def u_net():
    def double(inputs, outputs):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, bias=False),
            nn.BatchNorm2d(outputs),
        )

    return block(
        ("inc", block(("double_conv", double(3, 8)))),
        ("up1", block(("up", nn.ConvTranspose2d(16, 8, 2)), ("conv", double(16, 8)))),
        ("up2", block(("up", nn.ConvTranspose2d(8, 8, 2)), ("conv", double(8, 4)))),
        ("outc", nn.Conv2d(4, 2, 1)),
    )


def series():
    """A Linear called an embedding, of seven measured values."""
    return block(
        ("embed", nn.Linear(7, 12, bias=False)),
        ("layers", nn.ModuleList([nn.TransformerEncoderLayer(12, 2, 20)])),
        ("head", nn.Linear(12, 7)),
    )


def vision():
    def layer():
        return block(
            ("norm1", nn.LayerNorm(12)),
            ("attn", block(("qkv", nn.Linear(12, 36)), ("proj", nn.Linear(12, 12)))),
            ("ls1", block(("gamma", nn.Parameter(torch.ones(12))))),
        )

    return block(
        ("cls_token", nn.Parameter(torch.ones(1, 1, 12))),
        ("patch_embed", block(("proj", nn.Conv2d(3, 12, 4)))),
        ("blocks", nn.ModuleList([layer(), layer()])),
        ("head", nn.Linear(12, 5)),
    )


def experts():
    return block(
        ("gate", nn.Linear(12, 4, bias=False)),
        ("experts", block(("w1", nn.Parameter(torch.ones(4, 12, 20))))),
    )


def hand_written():
    """A matrix of one's own, multiplied from the other side, in a module with a bias."""
    return block(
        ("proj_in", block(("kernel", nn.Parameter(torch.ones(7, 12))))),
        ("square", block(("weight", nn.Parameter(torch.ones(12, 12))))),
        ("lookup", block(("table", nn.Parameter(torch.ones(9, 12))))),
    )


# Style → its model, and the share of keys that must be found, at the least.
STYLES = {
    "decoder_only": (decoder_only(True), 1.0),
    "decoder_only_without_bias": (decoder_only(False), 1.0),
    "swish_decoder": (swish_decoder(), 1.0),
    "residual_net": (residual_net(), 1.0),
    "generator": (generator(), 0.5),
    "autoencoder": (autoencoder(), 0.7),
    "u_net": (u_net(), 0.9),
    "series": (series(), 0.9),
    "vision": (vision(), 1.0),
    "experts": (experts(), 0.0),
    "hand_written": (hand_written(), 0.6),
}


@pytest.mark.parametrize("order", ["as defined", "sorted"])
@pytest.mark.parametrize("style", STYLES)
def test_nothing_is_wrong(style, order):
    model, share = STYLES[style]
    state = model.state_dict()
    infos = {key: TensorInfo(tuple(value.shape), "float32") for key, value in state.items()}
    infos = dict(sorted(infos.items())) if order == "sorted" else infos
    if style == "decoder_only" or style == "decoder_only_without_bias":
        del infos["lm_head.weight"]  # as transformers saves tied weights
    slots = infer(infos, parse_assumptions(["heads=2"])).slots
    truth = read_slots(model)
    found = {key: slot for key, slot in slots.items() if slot.outcome is not Outcome.REFUSED}
    for key, slot in found.items():
        layouts = [(it.part, it.layout, it.join) for it in slot.targets]
        assert layouts == [(it.part, it.layout, it.join) for it in truth[key].targets], key
    assert len(found) >= share * len(infos)
    if share < 1:
        assert len(found) < len(infos)  # the trap was seen

"""The layouts of big_vision's ViT and of MaxText's Llama, as their sources document them.

The Flax modules here are our own; their trees of parameters have those names and shapes:
https://github.com/google-research/big_vision/blob/main/big_vision/models/vit.py,
https://github.com/AI-Hypercomputer/maxtext/blob/main/MaxText/llama_or_mistral_ckpt.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import linen
from torch import nn

from converters import plan
from converters.checkpoint import StateDict, flatten, nest
from converters.errors import MisfitError
from converters.kept import writing_kept
from converters.reverse import to_state_dict
from converters.target.fit import fit_plan
from converters.target.shapes import target_shapes


def randomized(model):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) / 4)
    return model.eval()


def fitted(model, target, inputs, **options):
    """The plan's arrays in the target's form, after the way back gave the same tensors."""
    state = model.state_dict()
    made = plan(state, model=model)
    assert made.refused == ()
    done = fit_plan(made, target_shapes(target, inputs), **options)
    checkpoint = StateDict("model", state)
    tree = nest((leaf.path, leaf.read(checkpoint.read)) for leaf in done.plan.leaves)
    return done, tree


def assert_comes_back(folder, model, done, tree):
    state = model.state_dict()
    with writing_kept(folder / "x.safetensors", done.plan, StateDict("model", state)):
        pass
    back = to_state_dict(tree, kept=folder / "x.torch.safetensors")
    assert list(back) == list(state)
    assert all(torch.equal(back[key], state[key]) for key in state)


class TorchBlock(nn.Module):
    def __init__(self, width, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.Module()
        self.attn.qkv, self.attn.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Module()
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.attn.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.attn.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp.fc2(nn.functional.gelu(self.mlp.fc1(self.norm2(x))))


class TorchViT(nn.Module):
    """With the names that image models in torch mostly have."""

    def __init__(self, width=8, hidden=12, heads=2, depth=3, classes=5):
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, width, 4, 4)
        self.pos_embed = nn.Parameter(torch.zeros(1, 6, width))
        self.blocks = nn.ModuleList(TorchBlock(width, hidden, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patch_embed.proj(x).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


EPSILON = {"epsilon": 1e-5, "use_fast_variance": False}


class MlpBlock(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(x.shape[-1])(linen.gelu(linen.Dense(12)(x), approximate=False))


class Block(linen.Module):
    @linen.compact
    def __call__(self, x, _=None):
        y = linen.LayerNorm(**EPSILON)(x)
        x = x + linen.MultiHeadDotProductAttention(2)(y, y)
        return x + MlpBlock()(linen.LayerNorm(**EPSILON)(x)), None


class Encoder(linen.Module):
    scan: bool

    @linen.compact
    def __call__(self, x):
        if self.scan:
            many = linen.scan(
                Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            x, _ = many(name="encoderblock")(x, None)
        else:
            for index in range(3):
                x, _ = Block(name=f"encoderblock_{index}")(x)
        return linen.LayerNorm(name="encoder_norm", **EPSILON)(x)


class BigVisionViT(linen.Module):
    scan: bool = False

    @linen.compact
    def __call__(self, image):
        x = linen.Conv(8, (4, 4), strides=(4, 4), padding="VALID", name="embedding")(image)
        x = x.reshape(x.shape[0], -1, 8)
        x = x + self.param("pos_embedding", linen.initializers.zeros, (1, 6, 8))
        return linen.Dense(5, name="head")(Encoder(self.scan, name="Transformer")(x).mean(1))


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.long_cases("True")
def test_big_visions_vit(tmp_path, scan):
    model = randomized(TorchViT())
    images = np.random.default_rng(0).standard_normal((2, 3, 8, 12)).astype(np.float32)
    target = BigVisionViT(scan)
    done, tree = fitted(model, target, jax.ShapeDtypeStruct((1, 8, 12, 3), "float32"))
    path = "params/Transformer/encoderblock" + ("" if scan else "_0")
    shape = flatten(tree)[f"{path}/MultiHeadDotProductAttention_0/query/kernel"].shape
    assert shape == ((3, 8, 2, 4) if scan else (8, 2, 4))
    with torch.no_grad():
        expected = model(torch.from_numpy(images)).numpy()
    with jax.default_matmul_precision("highest"):
        found = target.apply(tree, images.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert_comes_back(tmp_path, model, done, tree)


HEADS, KV_HEADS, HEAD = 4, 2, 6


class RMSNorm(linen.Module):
    @linen.compact
    def __call__(self, x):
        scale = self.param("scale", linen.initializers.ones, (x.shape[-1],))
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def rotated(x):
    """Rotary positions as Llama has them; x is (batch, length, heads, head)."""
    rates = 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD)
    angles = np.arange(x.shape[1])[:, None] * rates
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    one, other = jnp.split(x, 2, -1)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1)


class SelfAttention(linen.Module):
    folded: bool = False

    @linen.compact
    def __call__(self, x):
        def heads(count, name):
            return linen.DenseGeneral((count, HEAD), use_bias=False, name=name)(x)

        # MaxText has the scale in the query's kernel; here it is written out, unless it is `folded`.
        query = rotated(heads(HEADS, "query")) / (1 if self.folded else np.sqrt(HEAD))
        key = jnp.repeat(rotated(heads(KV_HEADS, "key")), HEADS // KV_HEADS, 2)
        value = jnp.repeat(heads(KV_HEADS, "value"), HEADS // KV_HEADS, 2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
        causal = np.tril(np.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return linen.DenseGeneral(x.shape[-1], axis=(-2, -1), use_bias=False, name="out")(mixed)


class GatedMlp(linen.Module):
    @linen.compact
    def __call__(self, x):
        def dense(size, name):
            return linen.Dense(size, use_bias=False, name=name)

        gated = linen.silu(dense(20, "wi_0")(x)) * dense(20, "wi_1")(x)
        return dense(x.shape[-1], "wo")(gated)


class DecoderLayer(linen.Module):
    folded: bool = False

    @linen.compact
    def __call__(self, x, _):
        x = x + SelfAttention(self.folded, name="self_attention")(
            RMSNorm(name="pre_self_attention_layer_norm")(x)
        )
        return x + GatedMlp(name="mlp")(RMSNorm(name="post_self_attention_layer_norm")(x)), None


class Decoder(linen.Module):
    folded: bool = False

    @linen.compact
    def __call__(self, x):
        layers = linen.scan(
            DecoderLayer, variable_axes={"params": 1}, split_rngs={"params": True}, length=3
        )
        x = RMSNorm(name="decoder_norm")(layers(self.folded, name="layers")(x, None)[0])
        return linen.Dense(31, use_bias=False, name="logits_dense")(x)


class MaxTextLlama(linen.Module):
    folded: bool = False

    @linen.compact
    def __call__(self, ids):
        return Decoder(self.folded, name="decoder")(linen.Embed(31, 16, name="token_embedder")(ids))


def llama(layers=3, tied=False):
    config = transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    return randomized(transformers.LlamaForCausalLM(config))


def test_maxtexts_llama(tmp_path):
    model = llama()
    ids = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], np.int32)
    done, tree = fitted(model, MaxTextLlama(), jax.ShapeDtypeStruct((1, 5), "int32"))
    layers = tree["params"]["decoder"]["layers"]
    assert layers["self_attention"]["query"]["kernel"].shape == (16, 3, HEADS, HEAD)
    assert layers["self_attention"]["out"]["kernel"].shape == (HEADS, 3, HEAD, 16)
    assert layers["pre_self_attention_layer_norm"]["scale"].shape == (16, 3)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids).long()).logits.numpy()
    with jax.default_matmul_precision("highest"):
        found = MaxTextLlama().apply(tree, ids)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert_comes_back(tmp_path, model, done, tree)


def test_a_tied_head_where_the_target_has_its_own():
    model = llama(tied=True)
    _, tree = fitted(model, MaxTextLlama(), jax.ShapeDtypeStruct((1, 5), "int32"))
    np.testing.assert_array_equal(
        tree["params"]["decoder"]["logits_dense"]["kernel"],
        tree["params"]["token_embedder"]["embedding"].T,
    )


def test_another_number_of_layers_is_refused():
    with pytest.raises(MisfitError) as caught:
        fitted(llama(2), MaxTextLlama(), jax.ShapeDtypeStruct((1, 5), "int32"))
    lines = caught.value.misfits
    assert "missing: nothing for params/decoder/layers/mlp/wi_0/kernel (16, 3, 20)" in lines
    assert "extra: no place for params/model/layers_0/mlp/gate_proj/kernel (16, 20)" in lines

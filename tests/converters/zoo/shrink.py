"""Tiny configurations of transformers' model types: every width, depth and table made small.

Names say what a number is, so a table of names decides; the first that fits counts. Widths differ from
one another where the models allow it, so that a wrong permutation does not fit.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

HIDDEN, INNER, HEADS, HEAD, WORDS, PLACES, PIXELS = 32, 48, 4, 8, 96, 64, 64
LAYER_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types")

# Pattern of a field's name → the largest value it keeps; None: as it is.
_LIMITS: tuple[tuple[str, int | None], ...] = (
    (
        "num_conv_layers|num_channels|merge_size|kernel|stride|padd|dilation|bucket|rate|label|bins",
        None,
    ),
    (
        "factor|expan|ratio|scale|_levels|_points|_groups$|mel|codebooks$|langs|theta|loss|cost|mask_",
        None,
    ),
    (
        "_period|_offset|temporal|compress|chunk|_steps|_iters|ignore|rel_|relative|_width$|hc_mult",
        None,
    ),
    ("num_pos_feats", HIDDEN // 2),
    ("coordinate_size", 4),
    ("shape_size", 8),
    ("latents", 16),
    ("vocab", WORDS),
    ("head_dim|^d_kv|d_head|head_size|kv_channels|rotary_dim|rope_dim", HEAD),
    ("rank", 16),
    ("(key_value_heads|kv_heads|heads|n_head)$", HEADS),
    ("first_k_dense|num_dense_layers|moe_layer_start", 1),
    ("(layers|n_layer|depth|blocks|n_block|layers_per_stage)$", 1),
    ("intermediate|ffn|d_ff|mlp_dim|mlp_hidden|feedforward", INNER),
    ("d_inner", 2 * HIDDEN),
    ("experts$", 4),
    ("per_tok|topk$|top_k$|experts_top", 2),
    ("^n_group$|^topk_group$|num_expert_group", 1),
    ("position|n_ctx|context_length|max_seq_len|max_length", PLACES),
    ("image_size|img_size|input_size", PIXELS),
    ("patch_size", 8),
    ("quer(y|ies)|seq_length|image_tokens|token_num", 16),
    ("window", 8),
    (
        "(size|dim|dims|width|channels|units|hidden|embd|embed|features|planes|filters|d_model)$",
        HIDDEN,
    ),
    ("(d_state|state_size|n_inner)$", HIDDEN),
)
# Fields without a default that a base model cannot do without, and what no name tells.
_WANTED = {"vocab_size": WORDS, "prediction_length": 4, "num_experts_per_tok": 2}
_OF_TYPE: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "reformer": {
        "axial_pos_embds_dim": [16, 16],
        "axial_pos_shape": [8, 8],
        "lsh_attn_chunk_length": 8,
        "local_attn_chunk_length": 8,
    },
}


def shrink(cls: Any, level: int = 0, given: dict[str, Any] | None = None) -> Any:
    """A small configuration of a class; a higher level (to 2) shrinks less, for those that mind."""
    given = dict(given or {})
    large = cls(**given)
    small: dict[str, Any] = dict(given)
    kinds = {
        name: list(dict.fromkeys(value))
        for name in LAYER_KINDS
        if (value := getattr(large, name, None)) and isinstance(value[0], str)
    }
    layers = max([len(value) for value in kinds.values()] + [_layers(large)])
    for name, default in _fields(cls).items():
        if name in given or name.startswith("_") or name in ("id2label", "label2id"):
            continue
        value = getattr(large, name, None)
        if name in kinds:
            small[name] = (kinds[name] * layers)[:layers]
        elif name == "num_hidden_layers" and isinstance(value, int):
            small[name] = min(value, layers)
        elif value is None and name in _WANTED:
            small[name] = _WANTED[name]
        elif default is not None and (new := _smaller(name, value, level)) != value:
            small[name] = new
        elif hasattr(value, "to_diff_dict"):
            small[name] = _nested(cls, name, value, level)
    small |= _OF_TYPE.get(getattr(cls, "model_type", ""), {})
    if "use_cache" in _fields(cls):
        small["use_cache"] = False
    if level == 1:
        small = {name: value for name, value in small.items() if name not in LAYER_KINDS}
    if level == 2:
        kept = "hidden_size|layers|heads|intermediate|vocab|token_id|config|image_size|experts"
        small = {name: value for name, value in small.items() if re.search(kept, name)}
    return cls(**small)


def _nested(cls: Any, name: str, value: Any, level: int) -> Any:
    if type(value).__name__ == "TimmBackboneConfig":  # timm is no dependency: a ResNet instead
        from transformers import ResNetConfig

        sizes = [HIDDEN] * 4
        return ResNetConfig(
            embedding_size=HIDDEN, hidden_sizes=sizes, depths=[1] * 4, out_features=["stage4"]
        )
    made_with = (getattr(cls, "sub_configs_defaults", None) or {}).get(name)
    return shrink(type(value), level, getattr(made_with, "init_kwargs", None))


def _layers(large: Any) -> int:
    """Two where some layers differ from others by their number, so that both kinds are there."""
    uneven = "period|step|freq|every|interval|first_k|num_dense|pattern|no_rope|sparse"
    return 2 if any(re.search(uneven, name) for name in _fields(type(large))) else 1


def _fields(cls: Any) -> dict[str, Any]:
    """Name → default of everything that a configuration is made with."""
    found: dict[str, Any] = {}
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.default_factory is not dataclasses.MISSING:
                found[field.name] = field.default_factory()
            else:
                found[field.name] = None if field.default is dataclasses.MISSING else field.default
    for parameter in inspect.signature(cls.__init__).parameters.values():
        if parameter.name not in ("self", "args", "kwargs"):
            default = parameter.default
            found.setdefault(parameter.name, None if default is parameter.empty else default)
    return found


def _smaller(name: str, value: Any, level: int) -> Any:
    if isinstance(value, bool) or value is None or name in ("out_indices", "out_features"):
        return value
    if re.search("token_(id|index)$|_token$|tok_id$", name):
        return min(value, WORDS - 1) if isinstance(value, int) and value >= 0 else value
    if isinstance(value, int):
        return _limited(name, value)
    if isinstance(value, list | tuple) and value and all(type(side) is int for side in value):
        return type(value)(_listed(name, list(value), level))
    return value


def _limited(name: str, value: int) -> int:
    for pattern, limit in _LIMITS:
        if re.search(pattern, name):
            return value if limit is None else min(value, limit)
    return value


def _listed(name: str, values: list[int], level: int) -> list[int]:
    if re.search("depth|num_blocks|repeats|layers$|block_sizes", name):
        return [min(value, 1) for value in values]
    if "heads" in name:
        return [1 << (min(value, HEADS).bit_length() - 1) for value in values]
    if re.search(
        "hidden_size|conv_dim|embed_dim|tdnn_dim|channels$|dims$|coder_in|feature_dims", name
    ):
        return [min(value, HIDDEN) for value in values]
    if re.search("image_size|img_size", name):
        return [min(value, PIXELS) for value in values]
    if "patch_size" in name:
        return [min(value, 8) for value in values]
    if re.search("layer_idx|indexes|indices|hook_ids|deepstack", name):
        small = [min(value, 1) for value in values]
        return small[:1] if level == 0 else small
    return values

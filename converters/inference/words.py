"""Meaning of the words in a module's name, in readable tables.

Names are a convention, not a proof. A guess based on them is never more than likely. A name with
two meanings, or none, leaves the layer open.
"""

from __future__ import annotations

import re
from functools import cache

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def _set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Words of a lookup table. The module is named after its output: rows.
EMBEDDING_WORDS = _set(
    "embed embeds embedded embedding embeddings embedder emb embs wte wpe token tokens"
)
# Complete names of a lookup table: T5's table and its relative positions, the codes of a quantizer.
EMBEDDING_NAMES = _set("shared relative_attention_bias codebook pe_k tok vocab")
# With these, an embedding is of continuous values, by a matrix or a convolution.
CONTINUOUS_WORDS = _set(
    "patch patches value values feature features frame frames image pixel pixels time timestep "
    "timesteps linear continuous coord bbox box pose cond audio video vision visual conv spatial"
)
# Discrete things that are looked up, whatever else the name contains.
LOOKUP_WORDS = _set("token tokens tok word words vocab vocabulary position positions pos wte wpe")

# Words of a matrix. At the end of a name they describe what the module does, also for an embedding
# ("embedding_projection").
LINEAR_WORDS = _set(
    "proj projs projection projections projector project linear linears lin fc dense mlp ffn ff head "
    "heads classifier qkv kv score reduction receptance gate"
)
# Words that no later word overrides ("proj_embed" may be either).
MATRIX_WORDS = _set("proj projection projector linear lin fc dense mlp ffn qkv kv")
# Complete names of a matrix.
LINEAR_NAMES = _set(
    "q k v o query key value query_key query_key_value out output logits "
    "to_q to_k to_v to_kv to_qkv to_out to_logits "
    "i2h h2h in_proj_qkv mlp_up mlp_down c_fc c_proj c_attn"
)
_SHORT_LINEAR = re.compile(r"w(?:i|o|q|k|v|qkv|kv|\d)(?:_?[a-z\d])?")  # wq, w1, wi_0, wqkv, wq_b

# A router of experts is a Linear in some code and a bare parameter in other code.
ROUTER_NAMES = _set("gate router")

# Words of a transposed convolution; a plain convolution may stand beside an Upsample.
UPWARD_WORDS = _set(
    "t up ups upsample upsampler upsamplers upsampling upscale upscaling upconv deconv deconvolution "
    "transpose transposed trans convt convtr tconv convtranspose unpool upblock upblocks resize "
    "decode generator synthesis scale"
)
# Modules that output an image or a wave.
DECODER_WORDS = _set("decoder dec generator gen vocoder synthesizer netg")
# Modules whose input is an image, a spectrogram or a wave.
INWARD_WORDS = _set(
    "patch patches patchify stem embed embedding embeddings embedder encoder downsample down"
)


@cache
def words(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: ("patch", "embed") for "patch_embed" and "PatchEmbed"."""
    return tuple(word.lower() for word in _WORD.findall(name))


def own_name(path: str) -> str:
    """Return the last part of a path that is not a number: "lm_heads" for "lm_heads.3"."""
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), "")


def family(path: str) -> str:
    """Return a path without its numbers, equal for the same layer of repeated blocks and for numbered
    twins."""
    return re.sub(r"\d+", "#", path)


def is_linear_name(name: str) -> bool:
    """Whether a name is that of a Linear."""
    lower = name.lower()
    if lower in LINEAR_NAMES or _SHORT_LINEAR.fullmatch(lower):
        return True
    return bool(LINEAR_WORDS & set(words(name)))


def ends_as_linear(name: str) -> bool:
    """Whether the last meaningful word of a name is that of a Linear."""
    return _last_word(name) in LINEAR_WORDS


def ends_as_embedding(name: str) -> bool:
    """Whether the last meaningful word of a name is that of an Embedding, without a matrix word before."""
    return _last_word(name) in EMBEDDING_WORDS and not MATRIX_WORDS & set(words(name))


def is_lookup_name(name: str) -> bool:
    """Whether a name refers to something discrete that is looked up."""
    return name.lower() in EMBEDDING_NAMES or bool(LOOKUP_WORDS & set(words(name)))


def _last_word(name: str) -> str:
    return next((word for word in reversed(words(name)) if not word.isdigit()), "")


def is_embedding_name(name: str) -> bool:
    """Whether a name is that of an Embedding of something discrete."""
    if name.lower() in EMBEDDING_NAMES:
        return True
    name_words = set(words(name))
    if not EMBEDDING_WORDS & name_words:
        return False
    return bool(LOOKUP_WORDS & name_words) or not CONTINUOUS_WORDS & name_words

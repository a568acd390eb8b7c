"""What the name of a module says of its layer: the words in it, in tables that anyone can read.

Names are a convention, no proof: a guess that rests on them is never more than likely, and a name that
says two things, or nothing, leaves the layer open.
"""

from __future__ import annotations

import re
from functools import cache

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def _set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Words of a lookup table. The module is named after what it gives: rows.
EMBEDDING_WORDS = _set(
    "embed embeds embedded embedding embeddings embedder emb embs wte wpe token tokens"
)
# Whole names of one: T5's table and its relative positions, the codes of a quantizer.
EMBEDDING_NAMES = _set("shared relative_attention_bias codebook pe_k tok vocab")
# With these, an embedding is of continuous values, by a matrix or a convolution.
CONTINUOUS_WORDS = _set(
    "patch patches value values feature features frame frames image pixel pixels time timestep "
    "timesteps linear continuous coord bbox box pose cond audio video vision visual conv spatial"
)
# Discrete things that are looked up, whatever else the name says.
LOOKUP_WORDS = _set("token tokens tok word words vocab vocabulary position positions pos wte wpe")

# Words of a matrix that is multiplied with. At the end of a name they say what the module does, also
# of an embedding ("embedding_projection").
LINEAR_WORDS = _set(
    "proj projs projection projections projector project linear linears lin fc dense mlp ffn ff head "
    "heads classifier qkv kv score reduction receptance gate"
)
# Those that nothing after them takes back ("proj_embed" may be either).
MATRIX_WORDS = _set("proj projection projector linear lin fc dense mlp ffn qkv kv")
# Whole names of one.
LINEAR_NAMES = _set(
    "q k v o query key value query_key query_key_value out output logits "
    "to_q to_k to_v to_kv to_qkv to_out to_logits "
    "i2h h2h in_proj_qkv mlp_up mlp_down c_fc c_proj c_attn"
)
_SHORT_LINEAR = re.compile(r"w(?:i|o|q|k|v|qkv|kv|\d)(?:_?[a-z\d])?")  # wq, w1, wi_0, wqkv, wq_b

# A router of experts is a Linear in one code and a bare parameter in the next.
ROUTER_NAMES = _set("gate router")

# Words that a transposed convolution is known by; a plain one may stand beside an Upsample.
UPWARD_WORDS = _set(
    "t up ups upsample upsampler upsamplers upsampling upscale upscaling upconv deconv deconvolution "
    "transpose transposed trans convt convtr tconv convtranspose unpool upblock upblocks resize "
    "decode generator synthesis scale"
)
# What gives an image or a wave.
DECODER_WORDS = _set("decoder dec generator gen vocoder synthesizer netg")
# Where an image, a spectrogram or a wave comes in.
INWARD_WORDS = _set(
    "patch patches patchify stem embed embedding embeddings embedder encoder downsample down"
)


@cache
def words(name: str) -> tuple[str, ...]:
    """The words of a name in lower case: ("patch", "embed") of "patch_embed" and "PatchEmbed"."""
    return tuple(word.lower() for word in _WORD.findall(name))


def own_name(path: str) -> str:
    """The last part of a path that is no number: "lm_heads" of "lm_heads.3"."""
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), "")


def family(path: str) -> str:
    """A path without its numbers, equal for the same layer of repeated blocks and for numbered twins."""
    return re.sub(r"\d+", "#", path)


def says_linear(name: str) -> bool:
    """Whether a name is that of a Linear."""
    lower = name.lower()
    if lower in LINEAR_NAMES or _SHORT_LINEAR.fullmatch(lower):
        return True
    return bool(LINEAR_WORDS & set(words(name)))


def ends_linear(name: str) -> bool:
    """Whether what a name says last is a Linear."""
    return _last_word(name) in LINEAR_WORDS


def ends_embedding(name: str) -> bool:
    """Whether what a name says last is an Embedding, and it names no matrix before."""
    return _last_word(name) in EMBEDDING_WORDS and not MATRIX_WORDS & set(words(name))


def says_lookup(name: str) -> bool:
    """Whether a name speaks of something discrete that is looked up."""
    return name.lower() in EMBEDDING_NAMES or bool(LOOKUP_WORDS & set(words(name)))


def _last_word(name: str) -> str:
    return next((word for word in reversed(words(name)) if not word.isdigit()), "")


def says_embedding(name: str) -> bool:
    """Whether a name is that of an Embedding, of something discrete."""
    if name.lower() in EMBEDDING_NAMES:
        return True
    found = set(words(name))
    if not EMBEDDING_WORDS & found:
        return False
    return bool(LOOKUP_WORDS & found) or not CONTINUOUS_WORDS & found

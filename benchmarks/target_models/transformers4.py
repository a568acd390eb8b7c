"""Small models of transformers: today's torch classes, and Flax's of transformers 4, in its own environment.

transformers4.py:ours("bert")       in the environment of this project
transformers4.py:theirs("bert")     in that of `make test-flax4`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_IDS = "input_ids=int32[2,7]<31"
_BOTH = f"{_IDS}; decoder_input_ids=int32[2,5]<31"
_IMAGE = "pixel_values=float32[2,3,32,32]"
_TEXT = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
}
_GPT = {"vocab_size": 31, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
_LLAMA = _TEXT | {"num_key_value_heads": 1}
_PICTURE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
}
_BART = {
    "vocab_size": 31,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 24,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
_T5 = {
    "vocab_size": 31,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
}
_TABLES = ("embed_positions",)
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2]}
_CLIP: dict[str, Any] = {
    "text_config": _TEXT | {"bos_token_id": 0, "eos_token_id": 30, "projection_dim": 8},
    "vision_config": _PICTURE | {"projection_dim": 8},
    "projection_dim": 8,
}


@dataclass(frozen=True)
class Type:
    """A type of model: its class (Flax's has `Flax` before it), its config's class and settings, an input.

    `drop`: what Flax's computes itself.
    """

    cls: str
    config: str
    inputs: str = _IDS
    settings: dict[str, Any] = field(default_factory=lambda: dict(_TEXT))
    drop: tuple[str, ...] = ()


TYPES = {
    "albert": Type("AlbertModel", "AlbertConfig", settings=_TEXT | {"embedding_size": 8}),
    "bart": Type("BartModel", "BartConfig", _BOTH, _BART),
    "beit": Type("BeitModel", "BeitConfig", _IMAGE, _PICTURE),
    "bert": Type("BertModel", "BertConfig"),
    "bert_mlm": Type("BertForMaskedLM", "BertConfig"),
    "big_bird": Type(
        "BigBirdModel", "BigBirdConfig", settings=_TEXT | {"attention_type": "original_full"}
    ),
    "blenderbot": Type("BlenderbotModel", "BlenderbotConfig", _BOTH, _BART),
    "blenderbot_small": Type("BlenderbotSmallModel", "BlenderbotSmallConfig", _BOTH, _BART),
    "bloom": Type(
        "BloomModel",
        "BloomConfig",
        settings={"vocab_size": 31, "hidden_size": 16, "n_layer": 2, "n_head": 2},
    ),
    "clip": Type("CLIPModel", "CLIPConfig", f"{_IDS}; {_IMAGE}", _CLIP),
    "clip_text": Type("CLIPTextModel", "CLIPTextConfig", settings=_CLIP["text_config"]),
    "clip_vision": Type("CLIPVisionModel", "CLIPVisionConfig", _IMAGE, _CLIP["vision_config"]),
    "dinov2": Type("Dinov2Model", "Dinov2Config", _IMAGE, _PICTURE),
    "distilbert": Type(
        "DistilBertModel",
        "DistilBertConfig",
        settings={
            "vocab_size": 31,
            "dim": 16,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 24,
            "max_position_embeddings": 24,
        },
    ),
    # Flax's takes ones where it is given no types of tokens, torch's zeros.
    "electra": Type(
        "ElectraModel",
        "ElectraConfig",
        f"{_IDS}; token_type_ids=int32[2,7]<2",
        _TEXT | {"embedding_size": 8},
    ),
    "gemma": Type("GemmaModel", "GemmaConfig", settings=_LLAMA | {"head_dim": 8}),
    "gpt2": Type("GPT2Model", "GPT2Config", settings=_GPT),
    "gpt2_lm": Type("GPT2LMHeadModel", "GPT2Config", settings=_GPT),
    "gpt_neo": Type(
        "GPTNeoModel",
        "GPTNeoConfig",
        settings={
            "vocab_size": 31,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "intermediate_size": 24,
            "max_position_embeddings": 24,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
    ),
    "gptj": Type("GPTJModel", "GPTJConfig", settings=_GPT | {"rotary_dim": 4}),
    "llama": Type("LlamaModel", "LlamaConfig", settings=_LLAMA),
    "longt5": Type(
        "LongT5Model",
        "LongT5Config",
        _BOTH,
        _T5 | {"local_radius": 3, "encoder_attention_type": "local"},
    ),
    "marian": Type("MarianModel", "MarianConfig", _BOTH, _BART | {"pad_token_id": 30}, _TABLES),
    "mbart": Type("MBartModel", "MBartConfig", _BOTH, _BART),
    "mistral": Type("MistralModel", "MistralConfig", settings=_LLAMA),
    "mt5": Type("MT5Model", "MT5Config", _BOTH, _T5),
    "opt": Type(
        "OPTModel",
        "OPTConfig",
        settings={
            "vocab_size": 31,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 24,
            "max_position_embeddings": 24,
            "word_embed_proj_dim": 16,
        },
    ),
    "pegasus": Type("PegasusModel", "PegasusConfig", _BOTH, _BART, _TABLES),
    "regnet": Type("RegNetModel", "RegNetConfig", _IMAGE, _RESNET | {"groups_width": 4}),
    "resnet": Type("ResNetModel", "ResNetConfig", _IMAGE, _RESNET),
    "roberta": Type("RobertaModel", "RobertaConfig"),
    "roberta_prelayernorm": Type("RobertaPreLayerNormModel", "RobertaPreLayerNormConfig"),
    "roformer": Type(
        "RoFormerModel",
        "RoFormerConfig",
        settings=_TEXT | {"embedding_size": 16},
        drop=_TABLES,
    ),
    "t5": Type("T5Model", "T5Config", _BOTH, _T5),
    "t5_gated": Type(
        "T5ForConditionalGeneration",
        "T5Config",
        _BOTH,
        _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "vit": Type("ViTForImageClassification", "ViTConfig", _IMAGE, _PICTURE | {"num_labels": 5}),
    "wav2vec2": Type(
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        "input_values=float32[2,400]",
        _TEXT
        | {
            "conv_dim": [8, 8],
            "conv_stride": [5, 2],
            "conv_kernel": [10, 3],
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "do_stable_layer_norm": True,
            "feat_extract_norm": "layer",
        },
    ),
    "whisper": Type(
        "WhisperModel",
        "WhisperConfig",
        "input_features=float32[2,8,24]; decoder_input_ids=int32[2,5]<31",
        _BART
        | {
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "max_target_positions": 12,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
    "xglm": Type(
        "XGLMModel",
        "XGLMConfig",
        settings={
            "vocab_size": 31,
            "d_model": 16,
            "num_layers": 2,
            "attention_heads": 2,
            "ffn_dim": 24,
            "max_position_embeddings": 24,
        },
    ),
    "xlm_roberta": Type("XLMRobertaModel", "XLMRobertaConfig"),
}


def ours(name: str) -> Any:
    """Torch's, as transformers has it today."""
    return _built(name, "")


def theirs(name: str) -> Any:
    """Flax's, as transformers 4 had it."""
    return _built(name, "Flax")


def _built(name: str, prefix: str) -> Any:
    import transformers

    one = TYPES[name]
    config = getattr(transformers, one.config)(**one.settings)
    return getattr(transformers, prefix + one.cls)(config)

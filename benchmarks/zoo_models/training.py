"""transformers' types as one trains them: tiny, as their factory draws them, with dropouts and with labels.

`BASES` are the models of huggingface.csv, `HEADS` those with a loss on top, which are given labels.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Any

from benchmarks.zoo_models.huggingface import TABLE

RATE = 0.1
BATCHES = 8
_RATES = re.compile(r"drop(out|_path|_rate)|pdrop")
_NOT_RATES = re.compile(r"layer_?drop|classifier_dropout")
# Mappings of transformers from configurations to classes with a loss, the likeliest first.
HEADS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING",
)
# Those that are used most, which are tried first; then the others of the table.
_FIRST = """
bert gpt2 llama vit t5 bart whisper mixtral swin convnext mamba roberta distilbert qwen2 qwen3 mistral
gemma2 gemma3_text gpt_oss deepseek_v3 clip siglip_vision_model dinov2 resnet wav2vec2 deberta-v2 electra
albert xlm-roberta modernbert mpnet opt bloom gpt_neox gptj gpt_neo phi phi3 falcon gemma qwen3_moe
deepseek_v2 mt5 umt5 mbart pegasus marian m2m_100 deit beit swinv2 convnextv2 dinov2_with_registers
dinov3_vit efficientnet mobilenet_v2 mobilevit segformer detr hubert wavlm clip_text_model
clip_vision_model siglip siglip2 xlnet deberta olmo2 granite starcoder2 qwen2_moe olmoe smollm3 stablelm
cohere2 mamba2 longformer big_bird layoutlm layoutlmv3 esm blip vilt videomae regnet switch_transformers
camembert data2vec-text
"""


def rows() -> dict[str, dict[str, str]]:
    """The types, those that are used most first."""
    with TABLE.open(newline="") as file:
        table = {row["type"]: row for row in csv.DictReader(file)}
    return {name: table[name] for name in (*_FIRST.split(), *table) if name in table}


def built(name: str, head: bool) -> Any:
    """The model of a type, as its class draws it.

    Raises:
        ValueError: no class of the type computes a loss from labels.
    """
    import transformers

    from benchmarks.zoo_models.tiny import tiny

    transformers.logging.set_verbosity_error()
    row = rows()[name]

    def configured() -> Any:
        config = tiny(transformers.CONFIG_MAPPING[name], int(row["shrunk"]))
        config.architectures = [row["class"]]
        _with_rates(config)
        if head and hasattr(config, "output_router_logits"):
            config.output_router_logits = True
        return config

    cls = _head(configured()) if head else transformers.AutoModel
    make = cls._from_config if head else cls.from_config
    try:
        return make(configured(), attn_implementation=row["attention"])
    except ValueError:  # some part of it has only its own attention
        return make(configured())


def inputs(model: Any, name: str) -> dict[str, Any]:
    """What the model is given: the inputs of its row, and labels where it computes a loss from them."""
    import torch

    from benchmarks.zoo_models.tiny import candidates, find

    row = rows()[name]
    for label, make in candidates(model, model.config):
        if label == row["inputs"]:
            made = {key: one for key, one in make().items() if one is not None}
            if "input_values" in made and find(model.config, "mask_time_length"):
                # Longer than what SpecAugment masks at once, without which they do not run in training.
                made["input_values"] = torch.cat(
                    [made["input_values"], made["input_values"].flip(-1)], -1
                )
            return made if type(model).__name__ == row["class"] else made | _labels(model, made)
    raise ValueError(f"no inputs {row['inputs']}")


def batches(model: Any, name: str) -> Iterator[dict[str, Any]]:
    """The inputs, and others of their shapes: what is drawn lies otherwise, but for tokens of images."""
    made = inputs(model, name)
    tokens = rows()[name]["inputs"] != "multimodal"
    moved = [
        key for key, one in made.items() if one.is_floating_point() or (tokens and "ids" in key)
    ]
    for turn in range(BATCHES):
        yield {key: one.roll(turn, -1) if key in moved else one for key, one in made.items()}


def _with_rates(config: Any) -> None:
    """Set the rates of all dropouts to that of this benchmark: many configurations have 0."""
    import transformers

    for key, one in list(vars(config).items()):
        if isinstance(one, transformers.PreTrainedConfig):
            _with_rates(one)
        elif _RATES.search(key) and not _NOT_RATES.search(key) and isinstance(one, float):
            setattr(config, key, RATE)


def _head(config: Any) -> Any:
    from transformers.models.auto import modeling_auto

    for mapping in HEADS:
        cls = getattr(modeling_auto, mapping).get(type(config), None)
        if cls is not None and type(cls) is not tuple:
            return cls
    raise ValueError("no class with a loss that this benchmark knows")


def _labels(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    import torch

    tokens = given.get("decoder_input_ids", given.get("input_ids"))
    if type(model).__name__.endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM")) or (
        "decoder_input_ids" in given
    ):
        labels = tokens.flip(-1).clone()
        labels[:, 0] = -100  # as those that are not counted
        return {"labels": labels}
    rows = next(iter(given.values())).shape[0]
    return {"labels": torch.arange(rows) % model.config.num_labels}

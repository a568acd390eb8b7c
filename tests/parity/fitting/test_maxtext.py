"""MaxText's Llama, as its sources document it: 1/√head_dim is in the query's kernel."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.torch import save_file

from converters import convert
from converters.reverse import to_state_dict
from tests.converters.target.test_layouts import HEAD, MaxTextLlama, llama
from tests.parity.fitting.follow import follow


@pytest.mark.long
@pytest.mark.parametrize("kind", ["linen", "jax"])
def test_maxtexts_llama_with_its_factor_in_the_query(kind: str, tmp_path: Path) -> None:
    target = MaxTextLlama(folded=True)
    ids = [{"input_ids": np.random.default_rng(n).integers(2, 31, (2, 5))} for n in (0, 1)]
    start = target.init(jax.random.key(0), ids[0]["input_ids"]) if kind == "jax" else None
    function = (
        target if kind == "linen" else lambda params, input_ids: target.apply(params, input_ids)
    )
    model = llama()
    found = follow(model, function, ids, tmp_path, kind=kind, start=start)
    assert found.proven, found.sentence
    (at,) = (
        row for row in found.plan.mapped if row.key == "model.layers.1.self_attn.q_proj.weight"
    )
    assert f"times({HEAD**-0.5!r})" in str(at.targets[0].layout)
    # And back: the factor is taken out again.
    state = tmp_path / "state.safetensors"
    save_file({key: one.contiguous() for key, one in model.state_dict().items()}, state)
    made = convert(state, output=tmp_path / "a.safetensors", mapping=tmp_path / "mapping.yaml")
    assert made.parameters
    back = to_state_dict(tmp_path / "a.safetensors")
    for key, one in model.state_dict().items():
        np.testing.assert_allclose(back[key], one, rtol=2e-7, err_msg=key)

"""The cached forward of a port, in a process of its own.

    python -m migrate.port.generation.port_side REQUEST

REQUEST is a JSON file: the folder of the port, its weights, a file of inputs, and where the logits go.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from migrate.port.package import package_of


def main(request: Path) -> None:
    """Run the port as requested."""
    values = json.loads(request.read_text())
    answer: dict[str, Any] = {}
    try:
        with package_of(Path(values["folder"])) as package:
            np.save(Path(values["work"]) / "logits.npy", _logits(package, values))
    except Exception as error:  # whatever the port's source raises
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
    Path(values["answer"]).write_text(json.dumps(answer))


def _logits(package: Any, values: Mapping[str, Any]) -> Any:
    """The logits at each position: those of the prompt at once, then one token at a time."""
    import jax
    import jax.numpy as jnp

    generation = importlib.import_module(f"{package.__name__}.generate")
    model = package.build()
    variables = package.load_params(Path(values["params"])) if values["params"] else {}
    arrays = np.load(Path(values["work"]) / "inputs.npz")
    tokens, mask = jnp.asarray(arrays["tokens"]), jnp.asarray(arrays["mask"])
    rows, length = tokens.shape
    positions = jnp.clip(jnp.cumsum(mask, axis=1) - 1, 0)
    across: tuple[Any, ...] = ()
    if values["encoder"]:
        source = [arrays[f"encoder.{name}"] for name in values["encoder"]]
        source += [arrays["encoder_mask"]] if values["encoder_mask"] else []
        across = (model.apply(variables, *source, method="encode"),)
    spare = 3  # a cache that is longer than needed must not matter
    long_mask = jnp.pad(mask, ((0, 0), (0, spare)), constant_values=1)

    @jax.jit
    def decode(some: Any, cache: Any, index: Any, places: Any) -> Any:
        rest: list[Any] = [index] if values["grows"] else []
        rest += [long_mask] if values["masks"] else []
        rest += [places] if values["positions"] else []
        rest += [arrays["encoder_mask"]] if values["encoder_mask"] else []
        return model.apply(variables, some, cache, *across, *rest, method="decode")

    cache = generation.init_cache(model.config, rows, length + spare)
    parts = []
    start = 0
    if values["grows"]:
        start = values["prompt"]
        logits, cache = decode(tokens[:, :start], cache, 0, positions[:, :start])
        parts.append(logits)
    for at in range(start, length):
        before = cache
        part = slice(at, at + 1)
        logits, cache = decode(tokens[:, part], cache, at, positions[:, part])
        if not values["grows"]:  # padding leaves the states as they are
            is_token = mask[:, at]

            def kept(new: Any, old: Any, is_token: Any = is_token) -> Any:
                return jnp.where(is_token.reshape(-1, *(1,) * (new.ndim - 1)) > 0, new, old)

            cache = jax.tree.map(kept, cache, before)
        parts.append(logits)
    return jnp.concatenate(parts, axis=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

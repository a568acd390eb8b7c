"""The process in which libtpu runs: a request in a file, the answer in another."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from migrate.compiler.written import WrittenProgram, written_in


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the request's program. A refusal by the compiler is an answer too."""
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    reply = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in request["topology_options"].items()
    }
    topology = topologies.get_topology_desc(request["topology"], platform="tpu", **reply)
    chosen = tuple(topology.devices[: request["devices"]])
    numbers = np.array([device.id for device in chosen])
    partitioned = request["partitioned"]
    data = base64.b64decode(request["data"])
    if request["format"] == "hlo":
        data = _jax.mlir.hlo_to_stablehlo(data)
    texts: list[str] = []
    stats: list[dict[str, Any]] = []
    refused = ""
    written = WrittenProgram()
    started, worked = time.monotonic(), time.process_time()
    for options in request["options"]:
        context = mlir.make_ir_context()
        with context:
            module = ir.Module.parse(data, context=context)
            _donate(ir, module, request["aliases"])
            written = written_in(module)
            compile_options = compiler.get_compile_options(
                num_replicas=1 if partitioned else len(chosen),
                num_partitions=len(chosen) if partitioned else 1,
                device_assignment=numbers.reshape((1, -1) if partitioned else (-1, 1)),
                backend=chosen[0].client,
                env_options_overrides=options,
            )
            build = compile_options.executable_build_options
            build.use_spmd_partitioning = partitioned
            # As jax.jit: shardings are written in Shardy's words where it wrote them.
            build.use_shardy_partitioner = partitioned and b"sdy." in data
            try:
                executable = chosen[0].client.compile(
                    module, _jax.DeviceList(chosen), compile_options
                )
            except jax.errors.JaxRuntimeError as error:
                refused = str(error)
                texts, stats = [], []
                break
            texts.append(executable.hlo_modules()[0].to_string())
            stats.append(_stats(executable))
    return {
        "texts": texts,
        "stats": stats,
        "device": chosen[0].device_kind,
        "libtpu": version("libtpu"),
        "refused": refused,
        "written": asdict(written),
        "seconds": time.monotonic() - started,
        "worked": time.process_time() - worked,
    }


def _donate(ir: Any, module: Any, aliases: Sequence[tuple[int, int]]) -> None:
    """Record in a program which outputs take the memory of which arguments."""
    if not aliases:
        return
    main = next(
        operation
        for operation in module.body.operations
        if str(operation.attributes["sym_name"]) == '"main"'
    )
    number = ir.IntegerType.get_signless(32)
    attributes = (
        [dict(_items(attribute)) for attribute in main.attributes["arg_attrs"]]
        if ("arg_attrs" in main.attributes)
        else [{} for _ in main.body.blocks[0].arguments]
    )
    for argument, output in aliases:
        attributes[argument]["tf.aliasing_output"] = ir.IntegerAttr.get(number, output)
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(
        [ir.DictAttr.get(attribute_values) for attribute_values in attributes]
    )


def _items(attributes: Any) -> Iterator[tuple[str, Any]]:
    for attribute_values in attributes:
        yield attribute_values.name, attribute_values.attr


def _stats(executable: Any) -> dict[str, Any]:
    memory = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    return {
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "peak": memory.peak_memory_in_bytes,
        "flops": float((cost if isinstance(cost, dict) else cost[0]).get("flops", 0.0)),
        "code": memory.generated_code_size_in_bytes,
    }


if __name__ == "__main__":
    reply = answer(json.loads(Path(sys.argv[1]).read_text()))
    # Renamed at the end: a file that is there is whole.
    part = Path(sys.argv[2] + ".part")
    part.write_text(json.dumps(reply))
    part.rename(sys.argv[2])

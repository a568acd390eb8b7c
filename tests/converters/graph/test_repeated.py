"""Repeated layers: runs, chains of calls, scans over stacked weights, and remat."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from benchmarks.zoo_models.port_package import imported
from converters.graph import GraphError, port
from converters.graph.writing.model import Class, Method, Model
from converters.graph.writing.repeated.remat import with_remat
from converters.graph.writing.repeated.repeats import Repeats, with_repeats
from converters.graph.writing.repeated.runs import Run, runs
from converters.graph.writing.repeated.scan import with_scans


def shown(found: tuple[Run, ...]) -> list[tuple[int, int, int]]:
    return [(run.first, run.period, run.count) for run in found]


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ("aaaa", [(0, 1, 4)]),
        ("abbb", [(0, 1, 1), (1, 1, 3)]),
        ("aabbbb", [(0, 1, 2), (2, 1, 4)]),
        ("lllllglllllg", [(0, 6, 2)]),
        ("lllllglllllglll", [(0, 6, 2), (12, 1, 3)]),
        ("abab", [(0, 2, 2)]),
        ("abc", [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
        ("", []),
    ],
)
def test_equal_layers_are_runs(keys: str, wanted: list[tuple[int, int, int]]) -> None:
    assert shown(runs(keys)) == wanted


def a_class(name: str, setup: str, body: str, arguments: tuple[str, ...] = ("x",)) -> Class:
    """A class of a port, of source; the last line of the body is its result."""
    *statements, last = ast.parse(body).body
    assert isinstance(last, ast.Expr)
    method = Method(arguments, (), statements, last.value)
    return Class(name, object, {}, True, ast.parse(setup).body, {"__call__": method}, typed=True)


BLOCK = a_class("Block", "self.dense = nn.Dense(4)", "self.dense(x)", ("x", "mask"))


def scanned(setup: str, body: str, arguments: tuple[str, ...] = ("x",)) -> tuple[str, Any]:
    model = Model((BLOCK, a_class("Net", setup, body, arguments)), {})
    result = with_scans(model, model)
    net = result.model.classes[-1]
    method = net.methods["__call__"]
    lines = [*net.setup, *method.body, ast.Expr(method.result)]
    return "\n".join(ast.unparse(ast.fix_missing_locations(line)) for line in lines), result


def test_a_loop_over_equal_layers_has_any_length() -> None:
    text, result = scanned(
        "self.layers = _list([Block(self.config)], self.config.depth)",
        "for layer in self.layers:\n    x = layer(x, mask)\nself.norm(x)",
        ("x", "mask"),
    )
    assert "self.layers = [Block(self.config)]" in text
    assert (
        "def step(layers: Any, x: jax.Array) -> jax.Array:\n    return layers[0](x, mask)" in text
    )
    assert "x = scan_layers(step, self.layers, self.config.depth, x)" in text
    assert [(stack.path, shown(stack.runs)) for stack in result.stacks] == [("layers", [(0, 1, 0)])]


def test_layers_that_alternate_are_a_group() -> None:
    calls = "\n".join(f"h = self.layers[{n}](h, {'ab'[n % 2]})" for n in range(1, 4))
    text, result = scanned(
        "self.layers = _list([Block(self.config)], 4)",
        f"h = self.layers[0](x, a)\n{calls}\nh",
        ("x", "a", "b"),
    )
    assert "h = x\n" in text  # the first layer reads another name
    assert "h = layers[0](h, a)\n    return layers[1](h, b)" in text
    assert "scan_layers(step, self.layers, 2, h)" in text
    assert shown(result.stacks[0].runs) == [(0, 2, 2)]


def test_a_mask_between_layers_is_made_before_them() -> None:
    text, _ = scanned(
        "self.layers = _list([Block(self.config)], 2)",
        "h = self.layers[0](x, m)\nn = m & p\nh = self.layers[1](h, m)\nh + n",
        ("x", "m", "p"),
    )
    assert text.index("n = m & p") < text.index("def step")


def test_a_first_layer_that_differs_stays_by_itself() -> None:
    text, result = scanned(
        "self.layers = [Block(self.config, bias=True), Block(self.config), Block(self.config)]",
        "x, b = self.layers[0](x, None)\n"
        "x, _ = self.layers[1](x, b)\nx, _ = self.layers[2](x, b)\nx",
    )
    assert "self.layers = [Block(self.config, bias=True), Block(self.config)]" in text
    assert "x = scan_layers(step, self.layers[1:2], 2, x)" in text
    assert shown(result.stacks[0].runs) == [(0, 1, 1), (1, 1, 2)]


def test_several_values_are_carried() -> None:
    text, _ = scanned(
        "self.layers = _list([Block(self.config)], self.config.depth)",
        "r = x\nfor layer in self.layers:\n    x = layer(x, r)\n    r = x + r\nx + r",
    )
    assert "x, r = carry" in text
    assert "x, r = scan_layers(step, self.layers, self.config.depth, (x, r))" in text


@pytest.mark.parametrize(
    ("setup", "body", "why"),
    [
        (
            "self.layers = _list([Block(self.config)], self.config.depth)",
            "out = []\nfor layer in self.layers:\n    x = layer(x)\n    out.append(x)\ntuple(out)",
            "collected",
        ),
        (
            "self.experts = _list([Block(self.config)], self.config.experts)",
            "y = 0\nfor expert in self.experts:\n    y = y + expert(x)\ny",
            "not given what the one before gave",
        ),
        (
            "self.layers = [Block(self.config, width=1), Block(self.config, width=2)]",
            "for layer in self.layers:\n    x = layer(x)\nx",
            "no layers repeat",
        ),
        (
            "self.layers = _list([Block(self.config)], 2)",
            "x = self.layers[0](x)\nx = self.layers[1].half(x)\nx",
            "not only called",
        ),
        (
            "self.layers = _list([Block(self.config)], self.config.depth)",
            "for layer in self.layers:\n    x = layer(x)\n    y = x + 1\nx + y",
            "read later",
        ),
    ],
)
def test_layers_that_are_no_chain_are_left(setup: str, body: str, why: str) -> None:
    text, result = scanned(setup, body)
    assert result.stacks == ()
    assert "scan_layers" not in text
    assert why in " ".join(result.left.values())
    model = Model((BLOCK, a_class("Net", setup, body)), {})
    with pytest.raises(GraphError, match=f"--scan: .*{why}"):
        with_repeats(model, Repeats(scan=True), ())


def test_paths_of_lists_within_lists() -> None:
    stage = a_class(
        "Stage",
        "self.blocks = _list([Block(self.config)], self.config.blocks)",
        "for block in self.blocks:\n    x = block(x, None)\nx",
    )
    net = a_class(
        "Net",
        "self.stages = [Stage(self.config), Stage(self.config)]\nself.head = Stage(self.config)",
        "for stage in self.stages:\n    x = stage(x)\nself.head(x)",
    )
    model = Model((BLOCK, stage, net), {})
    result = with_scans(model, model)
    assert sorted(stack.path for stack in result.stacks) == [
        "head/blocks",
        "stages",
        "stages_0/blocks",
        "stages_1/blocks",
    ]
    assert result.stacks[-1].path in ("stages", "head/blocks")  # the inner ones come first


def test_remat_wraps_the_inner_layers_and_passes_switches_by_position() -> None:
    block = a_class("Block", "self.dense = nn.Dense(4)", "self.dense(x)", ("x", "mask"))
    block.takes_mode = True
    net = a_class(
        "Net",
        "self.layers = _list([Block(self.config)], self.config.depth)",
        "for layer in self.layers:\n    x = layer(x, deterministic=deterministic)\nx",
    )
    model, left = with_remat(Model((block, net), {}), "dots")
    written = model.classes[-1]
    text = "\n".join(
        ast.unparse(ast.fix_missing_locations(line))
        for line in (*written.setup, *written.methods["__call__"].body)
    )
    assert left == {}
    assert (
        "remat_layer = nn.remat(Block, policy=jax.checkpoint_policies."
        "dots_with_no_batch_dims_saveable, static_argnums=(3,))"
    ) in text
    assert "x = layer(x, None, deterministic)" in text


class Block(torch.nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.dense = torch.nn.Linear(width, width)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.tanh(self.dense(self.norm(x)))) * mask


class Net(torch.nn.Module):
    """Blocks that alternate between two masks, and blocks that do not."""

    def __init__(self, width: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.mixed = torch.nn.ModuleList([Block(width, 0.1) for _ in range(5)])
        self.blocks = torch.nn.ModuleList([Block(width, 0.1) for _ in range(depth)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow = (x > 0).float()
        wide = torch.ones_like(x)
        for number, block in enumerate(self.mixed):
            x = block(x, wide if number % 2 else narrow)
        for block in self.blocks:
            x = block(x, wide)
        return x


def outputs_and_gradients(model: Any, variables: Any, x: Any) -> Any:
    def loss(variables: Any) -> Any:
        outputs = model.apply(variables, x=x)
        return jnp.sin(outputs).sum(), outputs

    return jax.jit(jax.grad(loss, has_aux=True))(variables)


def layers_of(written: Any) -> Mapping[str, Any]:
    from migrate.port.layers import layers_text

    namespace: dict[str, Any] = {}
    exec(layers_text(written.stacks), namespace)
    return namespace


def weights_of(module: torch.nn.Module) -> dict[str, Any]:
    """The weights of each layer apart, as a file has them."""
    params: dict[str, Any] = {}
    for name in ("mixed", "blocks"):
        for number, block in enumerate(getattr(module, name)):
            params[f"{name}_{number}"] = {
                "norm": {
                    "scale": jnp.asarray(block.norm.weight.detach()),
                    "bias": jnp.asarray(block.norm.bias.detach()),
                },
                "dense": {
                    "kernel": jnp.asarray(block.dense.weight.detach().T),
                    "bias": jnp.asarray(block.dense.bias.detach()),
                },
            }
    return {"params": params}


@pytest.fixture(scope="module")
def original() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net().eval(), torch.randn(2, 6)


@pytest.mark.parametrize("repeats", [Repeats(True, "dots"), Repeats(False, "nothing")])
@pytest.mark.long_cases("repeats0")
def test_repeated_layers_compute_the_same(
    load: Callable[..., Any], original: tuple[torch.nn.Module, torch.Tensor], repeats: Repeats
) -> None:
    module, given = original
    written = port(module, {"x": given}, repeats=repeats)
    assert ("scan_layers(step" in written.modeling) == repeats.scan
    assert ("dots_with_no_batch_dims_saveable" in written.modeling) == (repeats.remat == "dots")
    model = load(written)
    layers = layers_of(written) if repeats.scan else {"stack_layers": dict, "unstack_layers": dict}
    apart = weights_of(module)
    stacked = layers["stack_layers"](apart)
    made = model.init(jax.random.key(0), x=jnp.asarray(given))
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, stacked)
    assert jax.tree.map(jnp.shape, layers["unstack_layers"](made)) == jax.tree.map(jnp.shape, apart)
    blocks = layers["unstack_layers"](made)["params"]
    drawn = [np.asarray(blocks[f"blocks_{number}"]["dense"]["kernel"]) for number in range(3)]
    assert not np.allclose(drawn[0], drawn[1])  # each layer draws its own
    gradients, outputs = outputs_and_gradients(model, stacked, jnp.asarray(given))
    x = given.clone()
    module.zero_grad()
    wanted = module(x)
    torch.sin(wanted).sum().backward()
    np.testing.assert_allclose(outputs, wanted.detach().numpy(), atol=1e-5)
    got = layers["unstack_layers"](gradients)["params"]
    for name in ("mixed", "blocks"):
        for number, block in enumerate(getattr(module, name)):
            kernel = got[f"{name}_{number}"]["dense"]["kernel"]
            np.testing.assert_allclose(kernel, block.dense.weight.grad.T.numpy(), atol=1e-5)


@pytest.mark.long
def test_a_scanned_program_has_one_size_for_any_depth(tmp_path: Path) -> None:
    lines = []
    for depth in (3, 12):
        given = torch.randn(2, 6)
        written = port(Net(depth=depth).eval(), {"x": given}, repeats=Repeats(True))
        model = imported(written, tmp_path / f"of_{depth}_blocks")
        x = jnp.asarray(given)
        variables = jax.eval_shape(model.init, jax.random.key(0), x=x)
        step = jax.jit(
            jax.grad(lambda variables, model=model, x=x: model.apply(variables, x=x).sum())
        )
        lines.append(len(step.lower(variables).as_text().splitlines()))
    assert lines[0] == lines[1]


def test_a_model_without_repeated_layers_is_refused() -> None:
    with pytest.raises(GraphError, match="--scan: the model has no list of layers"):
        port(torch.nn.Linear(2, 3), {"input": torch.ones(2, 2)}, repeats=Repeats(scan=True))

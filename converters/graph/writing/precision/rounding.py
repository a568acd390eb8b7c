"""Sources whose layers and activations round once in 16 bits, as torch's kernels do.

Flax's Dense and Conv round the product and then its sum with the bias; `jax.nn.sigmoid` rounds the
exponential, the sum and the quotient. A port is written so only where its error in bfloat16 is too large
otherwise.
"""

from __future__ import annotations

import ast

# Layers of Flax that round a product before they add the bias → what rounds once.
_LAYERS = {
    "nn.Dense": "DenseRoundedOnce",
    "nn.Conv": "ConvRoundedOnce",
    "nnx.Linear": "LinearRoundedOnce",
    "nnx.Conv": "ConvolutionRoundedOnce",
}
# Functions of jax.nn that are one operator in torch, and several roundings in JAX.
_ACTIVATIONS = {
    *("sigmoid", "silu", "gelu", "softplus", "softmax", "log_softmax", "log_sigmoid"),
    *("selu", "mish", "hard_silu", "hard_swish", "hard_sigmoid"),
}
_WRAPPER = "rounded_once"


def rounding_once(text: str) -> str:
    """The source with what rounds once, in place of Flax's layers with a bias and of jax.nn's activations."""
    lines = text.encode().splitlines(keepends=True)
    edits = sorted(_edits(ast.parse(text)), key=lambda edit: (edit[0].lineno, edit[0].col_offset))
    for node, new in reversed(edits):
        at = node.lineno - 1
        if node.end_lineno == node.lineno:
            line = lines[at]
            lines[at] = line[: node.col_offset] + new.encode() + line[node.end_col_offset :]
    return b"".join(lines).decode()


def _edits(tree: ast.AST) -> list[tuple[ast.expr, str]]:
    edits: list[tuple[ast.expr, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            layer_function = _layer_of(node)
            layer = _LAYERS.get(ast.unparse(layer_function))
            if layer is not None and _has_bias(node):
                edits.append((layer_function, layer))
        elif isinstance(node, ast.Attribute) and node.attr in _ACTIVATIONS:
            name = ast.unparse(node)
            if name == f"jax.nn.{node.attr}":
                edits.append((node, f"{_WRAPPER}({name})"))
    return edits


def _layer_of(call: ast.Call) -> ast.expr:
    """The function that a call calls: that of `partial(nn.Dense, …)` is `nn.Dense`."""
    is_partial = isinstance(call.func, ast.Name) and call.func.id == "partial"
    return call.args[0] if is_partial and call.args else call.func


def _has_bias(layer_call: ast.Call) -> bool:
    """Whether a call that makes a layer does not say that the layer has no bias."""
    return not any(
        word.arg == "use_bias" and isinstance(word.value, ast.Constant) and not word.value.value
        for word in layer_call.keywords
    )

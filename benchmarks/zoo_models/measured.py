"""One model of a zoo, ported and compared with itself in torch: what a row of the table says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import io
import sys
import tempfile
import textwrap
import time
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

LIMIT = 1e-5
COLUMNS = ("type", "class", "ported", "rel_l2", "lines", "original_lines", "seconds", "reason")
Build = Callable[[str], tuple[Any, dict[str, Any]]]


def builder(zoo: str) -> Build:
    from benchmarks.zoo_models import gallery, huggingface, packages

    return {
        "huggingface": huggingface.build,
        "timm": packages.timm_build,
        "torchvision": packages.torchvision_build,
        "diffusers": packages.diffusers_build,
        "gallery": gallery.build,
    }[zoo]


def measure(zoo: str, name: str, keep: Path | None = None) -> dict[str, Any]:
    """The row of a model; what it raises, too, is a row."""
    began = time.perf_counter()
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            row |= _measured(*builder(zoo)(name), keep)
        except _StoppedError as stop:
            row |= {"ported": stop.args[0], "reason": stop.args[1], **stop.found}
        except Exception as error:
            row |= {"ported": "crash", "reason": f"{_said(error)} ({_place(error)})"}
    row["seconds"] = f"{time.perf_counter() - began:.1f}"
    return row


class _StoppedError(Exception):
    def __init__(self, ported: str, reason: str, **found: Any) -> None:
        super().__init__(ported, reason)
        self.found = found


def _measured(model: Any, inputs: dict[str, Any], keep: Path | None) -> dict[str, Any]:
    import numpy as np
    import torch

    from converters.graph.recording.ties import CHOICE
    from migrate.parity.sides.torch.capture.tree import leaves

    with _called(model) as classes, torch.no_grad():
        expected = [(path, one.clone()) for path, one in leaves(_run(model, inputs))]
    with torch.no_grad():
        again = [one for _, one in leaves(_run(model, inputs))]
    for (path, one), other in zip(expected, again, strict=True):
        if not torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)):
            raise _StoppedError("random", f"two passes in torch differ at {path}")
    found: dict[str, Any] = {"original_lines": original_lines(classes)}
    made = _ported(model, inputs, found)
    found["lines"] = code_lines(made.modeling)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / "modeling.py").write_text(made.modeling)
        (keep / "config.py").write_text(made.config)
    with tempfile.TemporaryDirectory() as scratch:
        actual = _in_flax(made, model, inputs, Path(scratch), found)
    if len(actual) != len(expected):
        raise _StoppedError(
            "mismatch", f"{len(actual)} outputs, torch has {len(expected)}", **found
        )
    worst, where = 0.0, ""
    if {path for path, _ in expected} != actual.keys():
        actual = dict(zip((path for path, _ in expected), actual.values(), strict=True))
    for path, one in expected:
        other = actual[path]
        truth, mine = one.detach().numpy(), np.asarray(other)
        if truth.shape != mine.shape:
            said = f"output {path} is {mine.shape}, torch's {truth.shape}"
            raise _StoppedError("mismatch", said, **found)
        distance = _distance(truth, mine)
        if not distance <= worst:
            worst, where = distance, path
    found["rel_l2"] = f"{worst:.2e}"
    if not worst <= LIMIT:
        said = f"relative L2 {worst:.1e} at output {where or 0}"
        tied = next((note for note in made.notes if note.startswith(CHOICE)), None)
        if tied is not None:
            raise _StoppedError("ties", f"{said}; {tied}", **found)
        errors = _errors(model, inputs, where, dict(expected)[where], actual[where])
        if errors is None:
            raise _StoppedError("mismatch", said, **found)
        theirs, mine = errors
        if mine <= LIMIT:  # torch itself is further from what both compute
            why = f"to float64; torch's own float32 is {theirs:.1e} from it"
            return {**found, "rel_l2": f"{mine:.2e}", "ported": "yes", "reason": why}
        kind = "rounding" if mine <= 2 * theirs else "mismatch"
        said += f"; to float64 {mine:.1e}, torch's own float32 {theirs:.1e}"
        raise _StoppedError(kind, said, **found)
    return {**found, "ported": "yes"}


def _errors(
    model: Any, inputs: Mapping[str, Any], path: str, one: Any, other: Any
) -> tuple[float, float] | None:
    """How far an output of torch's is from that in float64, and the port's; None: float64 cannot be had."""
    import numpy as np

    from converters.copied import copied
    from migrate.parity.sides.torch.capture.tree import leaves

    if not one.is_floating_point():
        return None
    wide = {
        name: each.double() if each.is_floating_point() else each for name, each in inputs.items()
    }
    try:
        truth = dict(leaves(_run(copied(model).double(), wide)))[path].detach().numpy()
    except (RuntimeError, KeyError):
        return None
    return _distance(truth, one.numpy()), _distance(truth, np.asarray(other))


def compared(made: Any, model: Any, inputs: Mapping[str, Any]) -> float:
    """Relative L2 of the worst output of a port that was written, in float32 under jit.

    Raises:
        ValueError: it gives something else than the original.
    """
    import torch

    from migrate.parity.sides.torch.capture.tree import leaves

    with torch.no_grad():
        expected = list(leaves(_run(model, inputs)))
    with tempfile.TemporaryDirectory() as scratch:
        actual = _in_flax(made, model, inputs, Path(scratch), {})
    if len(actual) != len(expected):
        raise ValueError("the port gives other outputs than the original")
    if {path for path, _ in expected} != actual.keys():
        actual = dict(zip((path for path, _ in expected), actual.values(), strict=True))
    pairs = [(one.numpy(), actual[path]) for path, one in expected]
    if any(one.shape != other.shape for one, other in pairs):
        raise ValueError("the port gives outputs of other shapes than the original")
    return max(_distance(one, other) for one, other in pairs)


def _run(model: Any, inputs: Mapping[str, Any]) -> Any:
    import torch

    torch.manual_seed(0)
    return model(**inputs)


def _ported(model: Any, inputs: dict[str, Any], found: dict[str, Any], api: str = "linen") -> Any:
    if importlib.util.find_spec("converters.graph") is None:
        raise _StoppedError("no compiler", "converters.graph is not there", **found)
    graph = importlib.import_module("converters.graph")
    if not hasattr(graph, "port"):
        raise _StoppedError("no compiler", "converters.graph has no port", **found)
    from converters.errors import ConversionError

    try:
        made = graph.port(model, dict(inputs.items()), api=api)
    except ConversionError as error:
        exporting = any("trace.py" in file for file, _ in _frames(error))
        kind = "export failed" if exporting else "refused"
        raise _StoppedError(kind, f"{_said(error)} ({_place(error)})", **found) from error
    if made.missing:
        names = {one.op: one.reason for one in made.missing}
        said = "; ".join(f"{op}: {why}" for op, why in sorted(names.items()))
        raise _StoppedError("missing ops", said[:3000], **found)
    return made


def _in_flax(
    made: Any, model: Any, inputs: Mapping[str, Any], scratch: Path, found: dict[str, Any]
) -> dict[str, Any]:
    """What the port gives, jitted, with weights that `converters` brought over."""
    import jax
    from safetensors.numpy import load_file, save_file

    from converters.errors import ConversionError
    from converters.output import load_pytree
    from migrate.port.nnx_model import NnxPort, is_nnx
    from migrate.port.weights import INITIAL, PARAMS, write_weights

    package = scratch / "ported_model"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "modeling.py").write_text(made.modeling)
    (package / "config.py").write_text(made.config)
    if made.initial:
        save_file(dict(made.initial), package / INITIAL)
    arrays = {name: one.numpy() for name, one in inputs.items()}
    images = all(one.is_floating_point() for one in inputs.values())
    example = tuple(tuple(one.shape) for one in inputs.values()) if images else None
    try:
        weights = write_weights(model, "zoo", made.constants, example, package, scratch, made.api)
    except ConversionError as error:
        raise _StoppedError("weights refused", _said(error), **found) from error
    variables = load_pytree(package / PARAMS) if weights.state else {}
    sys.path.insert(0, str(scratch))
    for name in [name for name in sys.modules if name.startswith("ported_model")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    try:
        modeling = importlib.import_module("ported_model.modeling")
        config = importlib.import_module("ported_model.config")
        cls, sizes = getattr(modeling, made.model_class), getattr(config, made.config_class)()
        if is_nnx(cls):
            flax_model: Any = NnxPort(cls, sizes)
            own = load_file(package / PARAMS) if weights.state else {}
            variables = {name: own[name] for name in flax_model.shapes()} | flax_model.rest()
        else:
            flax_model = cls(sizes) if "config" in cls.__dataclass_fields__ else cls()
        with jax.default_matmul_precision("highest"):
            given = jax.jit(flax_model.apply)(variables, **arrays)
    except Exception as error:
        raise _StoppedError(
            "crash", f"in Flax: {_said(error)} ({_place(error)})", **found
        ) from error
    return dict(_leaves(given))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Arrays with their paths; jax.jit gives dicts in the order of their keys."""
    if isinstance(value, Mapping):
        inner = list(value.items())
    elif isinstance(value, tuple | list):
        inner = list(enumerate(value))
    elif hasattr(value, "__dataclass_fields__"):
        inner = [(name, getattr(value, name)) for name in value.__dataclass_fields__]
    else:
        if hasattr(value, "shape"):
            yield path, value
        return
    for key, one in inner:
        yield from _leaves(one, f"{path}.{key}" if path else str(key))


def _distance(truth: Any, mine: Any) -> float:
    import numpy as np

    if truth.dtype.kind in "biu":
        return float(not np.array_equal(truth, mine))
    kind = complex if truth.dtype.kind == "c" else float
    a, b = truth.astype(kind).ravel(), np.asarray(mine).astype(kind).ravel()
    same = ~np.isfinite(a)
    if not np.array_equal(a[same], b[same], equal_nan=True):
        return float("inf")
    a, b = a[~same], b[~same]
    size = float(np.linalg.norm(a))
    apart = float(np.linalg.norm(a - b))
    return apart / size if size else apart


class _called:  # noqa: N801
    """The modules whose forward runs meanwhile."""

    def __init__(self, model: Any) -> None:
        self.model, self.ran, self.hooks = model, {}, []

    def __enter__(self) -> dict[type, None]:
        for module in self.model.modules():
            kind = type(module)
            note = lambda *_, kind=kind: self.ran.setdefault(kind)  # noqa: E731
            self.hooks.append(module.register_forward_pre_hook(note))
        return self.ran

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()


def ran(model: Any, inputs: Mapping[str, Any]) -> Mapping[type, None]:
    """The classes of modules whose forward runs."""
    import torch

    with _called(model) as found, torch.no_grad():
        _run(model, inputs)
    return found


def original_lines(classes: Mapping[type, None]) -> int:
    """Lines of code of the classes that are not torch's own."""
    total = 0
    for kind in classes:
        if kind.__module__.startswith("torch."):
            continue
        try:
            total += code_lines(textwrap.dedent(inspect.getsource(kind)))
        except (OSError, TypeError, SyntaxError):
            continue
    return total


def code_lines(source: str) -> int:
    """Lines with code on them: no comments, no docstrings, no blank ones."""
    lines: set[int] = set()
    passed = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*passed, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            text = node.body[0]
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def _frames(error: BaseException) -> list[tuple[str, int]]:
    found, traceback = [], error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        found.append((code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def _place(error: BaseException) -> str:
    """The innermost line of ours or of the port."""
    for file, line in reversed(_frames(error)):
        if "converters/" in file or "ported_model" in file or "benchmarks/" in file:
            return f"{Path(file).name}:{line}"
    return ""

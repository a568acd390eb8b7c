"""A model of transformers that writes the keys and values of its attention, or its states, into a
cache: its own cached forward, as a further method to record.

Which cache a model has is seen by calling it: it returns the cache that it created.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from converters.graph.caches import write_cache
from converters.graph.recording.trace import GraphError

Tensors = Mapping[str, torch.Tensor]
# Names of the method that continues a sequence and of the one that starts a decoder, and of the
# inputs that these have besides the model's.
DECODE, ENCODE = "decode", "encode"
CACHE, CROSS, INDEX = "cache", "cross", "index"
# Method → the cache that it returns.
CACHED = {DECODE: CACHE, ENCODE: CROSS}
# Names that models have for the cache that they take.
_TAKEN = ("past_key_values", "cache_params")
_KEY, _VALUE = "key", "value"
_LENGTH, _FIRST, _NEW = 13, 3, 7


@dataclass(frozen=True)
class CacheSlot:
    """A tensor of a cache.

    Attributes:
        cache: the cache that holds it: `CACHE`, or `CROSS` of a decoder's encoder.
        layer: the layer whose entry holds it.
        part: its name in the entry.
        shape: its shape; None stands for the rows, and for the length.
        dtype: its dtype.
    """

    cache: str
    layer: int
    part: str
    shape: tuple[int | None, ...]
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """The name of the recorded input."""
        return f"{self.cache}_{self.layer}_{self.part}"


@dataclass(frozen=True)
class CachedForward:
    """The cached forward of a model.

    Attributes:
        tokens: the input that has the new tokens.
        attention_mask: the input with the mask of the tokens so far; "" if the model has none.
        position_ids: the input with the positions of the new tokens; "" if the model has none.
        slots: the tensors of its caches, in order.
        grows: whether the cache has an axis of length. States of a recurrence have none, and the
            model then takes one token at a time.
        encoder: the inputs of the encoder; empty if the model has no encoder.
        encoder_axes: number of axes of the encoder's input; 0 if there is none.
        encoder_mask: the input with the mask of the encoder's tokens; "" if there is none.
        table: path of the embedding that positions are looked up in; None if there is none.
    """

    tokens: str
    attention_mask: str
    position_ids: str
    slots: tuple[CacheSlot, ...]
    grows: bool
    encoder: tuple[str, ...] = ()
    encoder_axes: int = 0
    encoder_mask: str = ""
    table: str | None = None

    def of_cache(self, cache: str) -> tuple[CacheSlot, ...]:
        """The tensors of one of its caches."""
        return tuple(slot for slot in self.slots if slot.cache == cache)

    @property
    def layers(self) -> int:
        """The number of layers that have an entry."""
        return 1 + max(slot.layer for slot in self.slots)


def cached_forward(module: torch.nn.Module, inputs: Tensors) -> CachedForward:
    """The cached forward of a model.

    Raises:
        GraphError: the model has none, or one of an unknown form.
    """
    takes = _arguments(module)
    taken = next((name for name in _TAKEN if name in takes), "")
    decoder = "decoder_input_ids" in takes
    tokens = "decoder_input_ids" if decoder else "input_ids"
    cls = type(module).__name__
    generates = getattr(module, "can_generate", None)
    if not taken or tokens not in takes or generates is None or not generates():
        raise GraphError(
            f"--cache: {cls} has no cached forward (`past_key_values`)",
            "port it without --cache",
        )
    if hasattr(type(module), DECODE) or (decoder and hasattr(type(module), ENCODE)):
        raise GraphError(
            f"--cache: {cls} has a method {DECODE} or {ENCODE} of its own", "rename it"
        )
    for name in inputs:
        if name not in (tokens, "attention_mask", "position_ids") and not decoder:
            raise GraphError(
                f"--cache: {cls} is called with {name}, and only tokens can be generated from",
                "leave it out of --inputs",
            )
    try:
        with torch.no_grad():
            outputs = module(**inputs, use_cache=True)
    except Exception as error:  # whatever the original raises
        line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise GraphError(
            f"--cache: {cls} does not run with use_cache=True ({line})", _WITHOUT
        ) from error
    created = next(
        (getattr(outputs, name, None) for name in _TAKEN if hasattr(outputs, name)), None
    )
    if created is None or getattr(outputs, "logits", None) is None:
        raise GraphError(f"--cache: {cls} returns no cache for use_cache=True", _WITHOUT)
    slots: list[CacheSlot] = []
    own = created
    if decoder:
        if not hasattr(created, "cross_attention_cache"):
            raise GraphError(f"--cache: {cls} returns a {type(created).__name__}", _WITHOUT)
        own = created.self_attention_cache
        slots += _slots(CROSS, created.cross_attention_cache, cls)
    slots = [*_slots(CACHE, own, cls), *slots]
    if not any(slot.cache == CACHE for slot in slots):
        raise GraphError(f"--cache: {cls} leaves its cache empty", _WITHOUT)
    grows = {None in slot.shape[1:] for slot in slots}
    if len(grows) != 1:
        raise GraphError(
            f"--cache: {cls} has keys and values in some layers and states in others", _WITHOUT
        )
    prefix = "decoder_" if decoder else ""
    encoder = tuple(name for name in inputs if decoder and not name.startswith(prefix))
    named = {
        name: f"{prefix}{name}" if f"{prefix}{name}" in takes else ""
        for name in ("attention_mask", "position_ids")
    }
    mask = "attention_mask" if "input_ids" in encoder else ""
    encoder = tuple(name for name in encoder if name != mask)
    if decoder and len(encoder) != 1:
        raise GraphError(
            f"--cache: the encoder of {cls} takes {', '.join(encoder) or 'nothing'}, not one input",
            "leave the others out of --inputs",
        )
    if grows == {False}:
        named = dict.fromkeys(named, "")
    cached = CachedForward(
        tokens,
        named["attention_mask"],
        named["position_ids"],
        tuple(slots),
        grows.pop(),
        encoder,
        inputs[encoder[0]].dim() if encoder else 0,
        mask,
    )
    return replace(cached, table=_table(module, cached, inputs))


def _table(module: torch.nn.Module, cached: CachedForward, inputs: Tensors) -> str | None:
    """The embedding that positions are looked up in: a call beyond its rows would read other rows."""
    if not cached.position_ids:
        return None
    seen: list[str] = []

    def look(path: str, args: Any, kwargs: Any) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.shape == positions.shape:
                seen.extend([path] if torch.equal(value, positions) else [])

    decode = recorded_methods(module, cached, inputs)[DECODE]
    positions = decode[cached.position_ids]
    with with_cached_forward(module, cached), ExitStack() as stack, torch.no_grad():
        # No tokens have the values of the positions.
        decode[cached.tokens] = (positions + 1).roll(1, 1)
        for path, layer in module.named_modules():
            if isinstance(layer, torch.nn.Embedding):
                hook = layer.register_forward_pre_hook(
                    lambda m, args, kwargs, path=path: look(path, args, kwargs), with_kwargs=True
                )
                stack.callback(hook.remove)
        getattr(module, DECODE)(**decode)
    return seen[0] if seen else None


_WITHOUT = "port it without --cache"


def _arguments(module: torch.nn.Module) -> list[str]:
    return list(inspect.signature(module.forward).parameters)


def _slots(cache: str, created: Any, cls: str) -> list[CacheSlot]:
    """The tensors of a cache that a model made."""
    slots = []
    for layer, entry in enumerate(created.layers):
        if isinstance(getattr(entry, "keys", None), torch.Tensor):
            for part, tensor in ((_KEY, entry.keys), (_VALUE, entry.values)):
                _, heads, _, size = tensor.shape
                slots.append(CacheSlot(cache, layer, part, (None, heads, None, size), tensor.dtype))
        elif hasattr(entry, "recurrent_states") and hasattr(entry, "conv_states"):
            for part, states in (("conv", entry.conv_states), ("ssm", entry.recurrent_states)):
                for number, tensor in states.items():
                    if tensor is None:
                        continue
                    name = part if len(states) == 1 else f"{part}_{number}"
                    slots.append(
                        CacheSlot(cache, layer, name, (None, *tensor.shape[1:]), tensor.dtype)
                    )
        else:
            raise GraphError(
                f"--cache: {cls} has a {type(entry).__name__} in layer {layer}",
                _WITHOUT,
            )
    return slots


# The methods, and what they are recorded with.


def recorded_methods(
    module: torch.nn.Module, cached: CachedForward, inputs: Tensors
) -> dict[str, dict[str, torch.Tensor]]:
    """The methods to record, each with its inputs."""
    generator = torch.Generator().manual_seed(0)
    tokens = inputs.get(cached.tokens, inputs.get("input_ids"))
    vocabulary = int(module.config.get_text_config(decoder=True).vocab_size)
    rows = 2 if tokens is None else len(tokens)
    new = _NEW if cached.grows else 1
    decode: dict[str, torch.Tensor] = {
        cached.tokens: torch.randint(vocabulary, (rows, new), generator=generator)
    }
    across = {name: inputs[name] for name in cached.encoder}
    source = _encoded_length(module, cached, inputs) if cached.encoder else 0
    for slot in cached.slots:
        length = source if slot.cache == CROSS else _LENGTH
        shape = [rows if at == 0 else side or length for at, side in enumerate(slot.shape)]
        decode[slot.name] = torch.randn(shape, generator=generator).to(slot.dtype)
    if cached.grows:
        decode[INDEX] = torch.tensor(_FIRST)
    if cached.attention_mask:
        mask = torch.ones((rows, _LENGTH), dtype=torch.int64)
        mask[0, :2] = 0
        decode[cached.attention_mask] = mask
    if cached.position_ids:
        start = _FIRST - 2 * (torch.arange(rows) == 0).to(torch.int64)
        decode[cached.position_ids] = torch.arange(new)[None] + start[:, None]
    methods = {DECODE: decode}
    if cached.encoder:
        methods[ENCODE] = dict(across)
    if cached.encoder_mask:
        mask = torch.ones((rows, source), dtype=torch.int64)
        mask[0, -2:] = 0
        decode[cached.encoder_mask] = methods[ENCODE][cached.encoder_mask] = mask
    return methods


def _encoded_length(module: torch.nn.Module, cached: CachedForward, inputs: Tensors) -> int:
    with torch.no_grad():
        encoded = module.get_encoder()(**{name: inputs[name] for name in cached.encoder})
    return int(encoded[0].shape[1])


@contextmanager
def with_cached_forward(module: torch.nn.Module, cached: CachedForward) -> Iterator[None]:
    """Give the model the methods `decode` and, if it has an encoder, `encode`."""
    cls = type(module)
    space: dict[str, Any] = {DECODE: _decode(cls, cached), "__module__": cls.__module__}
    if cached.encoder:
        space[ENCODE] = _encode(cls, cached)
    module.__class__ = type(cls.__name__, (cls,), space)
    try:
        yield
    finally:
        module.__class__ = cls


def _decode(cls: Any, cached: CachedForward) -> Any:
    own, across = cached.of_cache(CACHE), cached.of_cache(CROSS)
    taken = next(name for name in _TAKEN if name in inspect.signature(cls.forward).parameters)

    def run(self: Any, **tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _same_lengths([tensors[slot.name] for slot in own], tensors.get(cached.attention_mask))
        _same_lengths([tensors[slot.name] for slot in across], tensors.get(cached.encoder_mask))
        for slot in own:
            for axis, side in enumerate(slot.shape):
                torch._check(side is None or tensors[slot.name].shape[axis] == side)
        cache, layers = _cache(own, tensors)
        more: dict[str, Any] = {}
        if across:
            cache = _pair(cache, across, tensors)
            rows, length = tensors[own[0].name].shape[0], tensors[across[0].name].shape[2]
            hidden = torch.zeros(rows, length, _module_width(self))
            more["encoder_outputs"] = (hidden.to(tensors[own[0].name].dtype),)
        passed = {name: value for name, value in tensors.items() if name in named}
        outputs = cls.forward(self, **passed, **{taken: cache}, use_cache=True, **more)
        logits = outputs.logits
        return (logits, *(layers[slot.layer].part(slot.part) for slot in own))

    named = [cached.tokens, cached.attention_mask, cached.position_ids, cached.encoder_mask]
    order = [
        cached.tokens,
        *(slot.name for slot in cached.slots),
        *([INDEX] if cached.grows else []),
        *(name for name in named[1:] if name),
    ]
    return _method(DECODE, order, run)


def _same_lengths(tensors: Sequence[torch.Tensor], mask: torch.Tensor | None) -> None:
    """Record that the tensors of a cache have one length: the mask's."""
    if mask is None:
        return
    length = mask.shape[-1]
    for tensor in tensors:
        torch._check(tensor.shape[-2] == length)


def _module_width(module: Any) -> int:
    """The width of an encoder's states."""
    return int(module.config.hidden_size)


def _encode(cls: Any, cached: CachedForward) -> Any:
    across = cached.of_cache(CROSS)

    def run(self: Any, **tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from transformers.cache_utils import DynamicCache, EncoderDecoderCache

        rows = next(iter(tensors.values())).shape[0]
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        tokens = torch.zeros((rows, 2), dtype=torch.int64)
        cls.forward(
            self, **tensors, **{cached.tokens: tokens}, past_key_values=cache, use_cache=True
        )
        layers = cache.cross_attention_cache.layers
        values = {_KEY: "keys", _VALUE: "values"}
        return tuple(getattr(layers[slot.layer], values[slot.part]) for slot in across)

    names = [*cached.encoder, *([cached.encoder_mask] if cached.encoder_mask else [])]
    return _method(ENCODE, names, run)


def _method(name: str, arguments: Sequence[str], run: Any) -> Any:
    """A method with these arguments."""
    keywords = ", ".join(f"{argument}={argument}" for argument in arguments)
    space: dict[str, Any] = {"run": run}
    exec(f"def {name}(self, {', '.join(arguments)}): return run(self, {keywords})", space)
    return space[name]


def _cache(slots: Sequence[CacheSlot], tensors: Tensors) -> tuple[Any, dict[int, Any]]:
    """The cache of the recorded inputs, and its layers."""
    from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

    index = tensors.get(INDEX)

    class Attention(CacheLayerMixin):
        is_compileable = True
        is_sliding = False

        def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
            super().__init__()
            self.keys, self.values, self.is_initialized = keys, values, True

        def lazy_initialization(self, *states: torch.Tensor) -> None:
            """Nothing: the tensors are inputs."""

        def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> Any:
            self.keys = write_cache(self.keys, key_states, index)
            self.values = write_cache(self.values, value_states, index)
            return self.keys, self.values

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return self.keys.shape[-2], 0

        def get_seq_length(self) -> Any:
            return index

        def get_max_length(self) -> int:
            return self.keys.shape[-2]

        def part(self, name: str) -> torch.Tensor:
            return {_KEY: self.keys, _VALUE: self.values}[name]

    class States(LinearAttentionLayer):
        def __init__(self, conv: Sequence[Any], ssm: Sequence[Any]) -> None:
            super().__init__(len(conv))
            for number, (window, state) in enumerate(zip(conv, ssm, strict=True)):
                # The model changes them in place, and inputs must stay.
                self.conv_states[number] = window.clone()
                self.recurrent_states[number] = state.clone()
                self.is_conv_states_initialized[number] = True
                self.is_recurrent_states_initialized[number] = True
                self.has_previous_state[number] = True
                self.conv_kernel_size[number] = window.shape[-1]
            self.device, self.dtype = conv[0].device, conv[0].dtype

        def part(self, name: str) -> torch.Tensor:
            kind, _, number = name.partition("_")
            states = self.conv_states if kind == "conv" else self.recurrent_states
            state: Any = states[int(number or 0)]
            return state

    layers: dict[int, Any] = {}
    for layer in sorted({slot.layer for slot in slots}):
        parts = {slot.part: tensors[slot.name] for slot in slots if slot.layer == layer}
        if _KEY in parts:
            layers[layer] = Attention(parts[_KEY], parts[_VALUE])
        else:
            kinds = (
                [tensor for part, tensor in parts.items() if part.startswith(kind)]
                for kind in ("conv", "ssm")
            )
            layers[layer] = States(*kinds)
    return Cache(layers=list(layers.values())), layers


def _pair(cache: Any, slots: Sequence[CacheSlot], tensors: Tensors) -> Any:
    """A decoder's cache, with the keys and values of its encoder."""
    from transformers.cache_utils import EncoderDecoderCache

    across, layers = _cache(slots, tensors)
    pair = object.__new__(EncoderDecoderCache)
    pair.self_attention_cache, pair.cross_attention_cache = cache, across
    pair.is_updated = dict.fromkeys(layers, True)
    return pair

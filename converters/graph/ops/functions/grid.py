"""Images sampled where a grid says, as torch.nn.functional.grid_sample does."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp


def grid_sample(
    x: jax.Array,
    grid: jax.Array,
    mode: str = "bilinear",
    padding: str = "zeros",
    align_corners: bool = False,
) -> jax.Array:
    """Pixels of (N, C, …) at places of (N, …, axes), from -1 to 1, the last axis of the image first."""
    sides = x.shape[2:]
    places = []
    for side, place in zip(sides, jnp.moveaxis(grid, -1, 0)[::-1], strict=True):
        at = (place + 1) / 2 * (side - 1) if align_corners else ((place + 1) * side - 1) / 2
        places.append(at if mode == "bicubic" else inside(at, side, padding, align_corners))
    if mode == "nearest":
        return pixels(x, [jnp.round(at) for at in places], padding, align_corners)
    steps = (-1, 0, 1, 2) if mode == "bicubic" else (0, 1)
    first = [jnp.floor(at) for at in places]
    amounts = [grid_weights(at - low, mode) for at, low in zip(places, first, strict=True)]
    total = jnp.zeros((), x.dtype)
    for chosen in itertools.product(range(len(steps)), repeat=len(sides)):
        corner = [low + steps[side] for low, side in zip(first, chosen, strict=True)]
        weight = jnp.ones((), x.dtype)
        for amount, side in zip(amounts, chosen, strict=True):
            weight = weight * amount[side]
        total = total + pixels(x, corner, padding, align_corners) * weight[:, None]
    return total


def grid_weights(rest: jax.Array, mode: str) -> list[jax.Array]:
    """Weights of the pixels around a position that lies `rest` behind the first of them."""
    if mode == "bilinear":
        return [1 - rest, rest]
    a = -0.75
    far = [rest + 1, 2 - rest]
    near = [rest, 1 - rest]
    outer = [((a * t - 5 * a) * t + 8 * a) * t - 4 * a for t in far]
    inner = [((a + 2) * t - (a + 3)) * t * t + 1 for t in near]
    return [outer[0], inner[0], inner[1], outer[1]]


def inside(at: jax.Array, side: int, padding: str, align_corners: bool) -> jax.Array:
    """Places moved into the image: to its border, or mirrored by it."""
    if padding == "zeros":
        return at
    if padding == "reflection":
        low, span = (0.0, side - 1) if align_corners else (-0.5, side)
        if span == 0:
            return jnp.zeros_like(at)
        away = jnp.abs(at - low)
        turns, rest = jnp.floor(away / span), away % span
        at = jnp.where(turns % 2 == 0, rest, span - rest) + low
    return jnp.clip(at, 0, side - 1)


def pixels(x: jax.Array, at: list[jax.Array], padding: str, align_corners: bool) -> jax.Array:
    """The pixels of (N, C, …) at whole places; outside of the image 0, or as the padding says."""
    known = jnp.ones((), jnp.bool_)
    places = []
    for side, place in zip(x.shape[2:], at, strict=True):
        place = inside(place, side, padding, align_corners)
        known = known & (place >= 0) & (place < side)
        places.append(jnp.clip(place, 0, side - 1).astype(jnp.int32))
    pixels = jax.vmap(lambda image, where: image[(slice(None), *where)])(x, tuple(places))
    return jnp.where(known[:, None], pixels, 0)


def affine_grid(theta: jax.Array, size: tuple[int, ...], align_corners: bool) -> jax.Array:
    """The places that an affine map gives the pixels of images of this size."""
    axes = []
    for side in size[2:]:
        line = jnp.linspace(-1, 1, side, dtype=theta.dtype)
        axes.append(line if align_corners else line * (side - 1) / side)
    mesh = jnp.meshgrid(*axes, indexing="ij")
    base = jnp.stack([*mesh[::-1], jnp.ones_like(mesh[0])], axis=-1)
    # A place rounded to bfloat16, as a TPU does in products by default, is pixels away.
    grid = jnp.matmul(base.reshape(-1, base.shape[-1]), theta.mT, precision="highest")
    return grid.reshape(theta.shape[0], *size[2:], len(axes))

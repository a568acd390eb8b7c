"""Fitting of a plan to an existing Flax model: its names and its arrangement, without guessing.

from converters.target.fit import fit_plan
from converters.target.shapes import target_shapes

fitted = fit_plan(plan, target_shapes("net.py:FlaxNet", inputs="net.py:example"))
fitted.plan  # the same keys, at the paths of the Flax model
"""

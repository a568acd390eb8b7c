"""Requests: what a conversion is asked for, and the same as keyword arguments."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import converters.request
from converters import convert, plan
from converters.request import PlanKeywords, PlanOptions


def test_the_keywords_are_the_fields() -> None:
    keywords = {name: one.__forward_arg__ for name, one in PlanKeywords.__annotations__.items()}
    assert keywords == {one.name: one.type for one in dataclasses.fields(PlanOptions)}


def test_a_keyword_that_does_not_exist_is_no_conversion() -> None:
    with pytest.raises(TypeError, match="modle"):
        plan({}, modle="net.py:Net")  # type: ignore[call-arg]


def test_the_keywords_of_convert_are_those_of_its_request() -> None:
    keywords = inspect.signature(convert).parameters
    request = {one.name for one in dataclasses.fields(converters.request.ConversionRequest)}
    optimizer = {"optimizer_key", "optimizer_kind", "optimizer_order"}
    run = {"progress", "hosts", "planner", "extra", "options"}
    assert keywords.keys() - run - optimizer == request - {"plan"}

"""JSON of journals: what orjson cannot read or write is not lost."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from sky_jupyter.util import json_codec

VALUES = ["é €", "\ud800 alone", "\x1b[31m\u2028\r\n", 2**64 - 1, -(2**63), 1.5, True, None, {"a": [1, {"b": "c"}]}]


@pytest.mark.parametrize("value", VALUES, ids=ascii)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    line = json_codec.dumps({"value": value})
    assert b"\n" not in line
    assert json_codec.loads(line) == json.loads(line) == {"value": value}
    assert json_codec.loads(line.decode()) == {"value": value}


def test_numbers_that_json_does_not_have_become_null() -> None:
    assert json_codec.dumps([float("nan"), float("inf")]) == b"[null,null]"


def test_keys_that_are_no_strings_become_strings() -> None:
    assert json_codec.dumps({1: "one"}) == b'{"1":"one"}'


def test_integers_of_more_than_64_bits_are_written_whole() -> None:
    assert json_codec.dumps([2**70]) == b"[%d]" % 2**70


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"bytes", datetime.date(2026, 1, 1)], ids=lambda value: type(value).__name__
)
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        json_codec.dumps({"value": value})


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[1] 2"])
def test_what_cannot_be_read_is_refused(text: bytes | str) -> None:
    with pytest.raises(ValueError):
        json_codec.loads(text)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_very_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        json_codec.loads(text)


def test_what_only_other_parsers_write_is_read() -> None:
    assert str(json_codec.loads("[NaN, Infinity]")) == "[nan, inf]"

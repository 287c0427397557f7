"""Terminal colours as HTML, and without them."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sky_jupyter.display.model import ansi


def test_text_is_escaped_and_plain_text_gets_no_span():
    assert ansi.to_html("a < b & c\n") == "a &lt; b &amp; c\n"
    assert ansi.to_html("\x1b[1m<b>\x1b[0m<i>") == '<span style="font-weight:bold">&lt;b&gt;</span>&lt;i&gt;'


@pytest.mark.parametrize(
    ("codes", "css"),
    [
        ("31", "color:#e03e3e;color:var(--jp-error-color1,#e03e3e)"),
        ("33", "color:#a87b00"),
        ("93", "color:#a87b00"),
        ("30", "color:#7f7f7f"),
        ("30;43", "color:#000000;background-color:#a87b00"),
        ("38;5;196", "color:#ff0000"),
        ("38;5;11", "color:#a87b00"),
        ("38;5;240", "color:#585858"),
        ("38;2;1;2;3", "color:#010203"),
        ("38:5:196", "color:#ff0000"),
        ("35;7", "background-color:#b455c4"),
        ("7", "background-color:#7f7f7f"),
        ("2;3;4;9", "opacity:0.7;font-style:italic;text-decoration:underline line-through"),
        ("97", ""),
        ("31;39", ""),
        ("1;22;4;24;3;23;7;27;9;29;45;49", ""),
        ("1;0", ""),
        ("38", ""),
        ("38;5", ""),
        ("38;5;999", ""),
        ("5;8;77", ""),
    ],
)
def test_codes_become_inline_styles(codes, css):
    expected = f'<span style="{css}">x</span>' if css else "x"
    assert ansi.to_html(f"\x1b[{codes}mx") == expected


def test_strip_removes_every_escape():
    text = "\x1b[1;31ma\x1b[0m\x1b[Kb\x1b]0;t\x07c\x1b"
    assert ansi.strip(text) == "abc"


@given(st.text(alphabet="ab<>&\"'\x1b[]0123456789;:mK\x07\\", max_size=80))
def test_html_of_anything_shows_exactly_the_stripped_text(text):
    shown = ansi.to_html(text)
    tags = re.findall(r"<[^>]*>", shown)
    assert all(re.fullmatch(r'<span style="[^"<>]*">|</span>', tag) for tag in tags)
    assert html.unescape(re.sub(r"<[^>]*>", "", shown)) == ansi.strip(text)


@given(st.lists(st.integers(0, 110), max_size=8))
def test_a_style_survives_its_codes(numbers):
    style = ansi.restyled(ansi.PLAIN, ";".join(map(str, numbers)))
    assert ansi.restyled(ansi.PLAIN, ansi.codes_of(style)) == style


def luminance(colour):
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("code", [*range(30, 38), *range(90, 97)])
def test_each_colour_is_readable_on_white_and_on_a_dark_page(code):
    level = luminance(re.findall(r"#[0-9a-f]{6}", ansi.css(str(code)))[0])
    assert 1.05 / (level + 0.05) >= 3.5
    assert (level + 0.05) / (luminance("#111111") + 0.05) >= 3.5

"""The manual page that ``%%sky?`` shows says everything that the parser knows, and its examples hold."""

from __future__ import annotations

import re

import pytest
from IPython.core.interactiveshell import InteractiveShell

import sky_jupyter
from sky_jupyter.magics.manual_page import MANUAL
from sky_jupyter.magics.option_table import TARGETS, VERBS, options_of, switches_of, targets_text
from sky_jupyter.magics.parsing import parse

EXAMPLES = [line.strip() for line in MANUAL.partition("Examples::")[2].splitlines() if "%sky" in line]


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell()
    sky_jupyter.load_ipython_extension(shell)
    yield shell
    sky_jupyter.unload_ipython_extension(shell)


@pytest.mark.parametrize("question", ["%%sky", "%sky", "sky"])
def test_the_manual_is_what_the_magics_help_shows(shell, question):
    assert "".join(MANUAL.split()) in "".join(shell.object_inspect_text(question).split())


def test_the_docstring_says_where_the_manual_is(shell):
    assert "`%%sky?`" in shell.find_cell_magic("sky").__doc__.replace("``", "`")


@pytest.mark.parametrize("option", options_of(None), ids=lambda option: option.flag)
def test_every_option_has_a_line(option):
    assert re.search(rf"^  {re.escape(option.flag)} \S.* {re.escape(option.help)}$", MANUAL, re.MULTILINE)


def test_switches_and_verbs_have_a_line():
    for switch in switches_of(None):
        assert re.search(rf"^  {switch.flag} +{re.escape(switch.help)}$", MANUAL, re.MULTILINE)
    for verb, text in VERBS.items():
        behind = re.escape(f" {targets_text(verb)}") if verb in TARGETS else ""
        assert re.search(rf"^  {verb}{behind} +{re.escape(text)}$", MANUAL, re.MULTILINE)


def test_no_line_is_wider_than_a_terminal_of_120():
    assert max(map(len, MANUAL.splitlines())) <= 120


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_parses(line):
    mark, _, rest = line.partition("sky")
    parse(rest, cell=mark == "%%")


def test_there_are_examples_of_cells_and_of_verbs():
    assert {line.partition("sky")[0] for line in EXAMPLES} == {"%", "%%"}

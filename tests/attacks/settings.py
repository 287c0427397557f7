"""Surroundings that a notebook may have, and that break what reads them: variables, and files that they name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_YAML = "distributed:\n  scheduler:\n    preload: [nope_no_such_module]\n  comm:\n    timeouts:\n      connect: 1ms\n"
# By what it is; FOLDER is a folder of the test's own, in which `write` has put its files.
SURROUNDINGS: Mapping[str, Mapping[str, str]] = {
    "a preload that is missing": {"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "['nope_no_such_module']"},
    "a worker's preload that is missing": {"DASK_DISTRIBUTED__WORKER__PRELOAD": "['nope_no_such_module']"},
    "a client's preload that is missing": {"DASK_DISTRIBUTED__CLIENT__PRELOAD": "['nope_no_such_module']"},
    "no time to connect": {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1ms"},
    "another cluster": {
        "DASK_SCHEDULER__ADDRESS": "tcp://192.0.2.1:8786",
        "DASK_SCHEDULER_ADDRESS": "tcp://192.0.2.1:8786",
    },
    "a configuration file": {"DASK_CONFIG": "FOLDER/dask"},
    "a line break in TMPDIR": {"TMPDIR": "FOLDER/a\nb"},
    "escapes in TMPDIR": {"TMPDIR": "FOLDER/a\x1b[31mb"},
}


def write(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Make the files and folders of some surroundings; the variables."""
    variables = {name: value.replace("FOLDER", str(folder)) for name, value in given.items()}
    (folder / "dask").mkdir()
    (folder / "dask" / "mine.yaml").write_text(_YAML)
    if "TMPDIR" in variables:
        Path(variables["TMPDIR"]).mkdir()
    return variables

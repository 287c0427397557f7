"""The recipe of docs/interruptions.md for a training that outlives its machines, as it stands there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.programs import ROOT

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jax", "keras"))), reason="needs jax and keras (the `keras` extra)"
)
# The reader's own part. A rank is lost in the second round, once.
BEFORE = """
import numpy as np

import sky_jupyter as sky

inputs = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
targets = inputs.sum(1, keepdims=True)

def make_model():
    import os, signal
    import keras

    if os.path.exists("kept") and sky.instance_info().rank == 1 and not os.path.exists("lost"):
        open("lost", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

if __name__ == "__main__":
  with sky.Compute(nodes=2, plugins=["jax", "keras"]) as pool:
"""


@pytest.mark.long
def test_a_training_goes_on_where_it_was_as_the_recipe_says(tmp_path: Path) -> None:
    found = re.search(
        r"## Train through it\n.*?```python\n(.*?)```", (ROOT / "docs/interruptions.md").read_text(), re.DOTALL
    )
    assert found is not None
    program = tmp_path / "train.py"
    program.write_text(BEFORE + textwrap.indent(f"{found[1]}\n    print(epochs, trained)\n", "    "))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # In each round only its own epochs are trained, in the interrupted one too.
    rounds = [line for line in done.stdout.splitlines() if re.match(r"\d \[", line)]
    assert rounds == ["2 [[0, 1], [0, 1]]", "4 [[2, 3], [2, 3]]", "6 [[4, 5], [4, 5]]"]
    assert (tmp_path / "lost").exists()

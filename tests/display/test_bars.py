"""Progress bars are found in what libraries print."""

from __future__ import annotations

import pytest

from sky_jupyter.display.model.progress_bars import Bar, of_line


@pytest.mark.parametrize(
    ("line", "bar"),
    [
        (" 43%|████▎     | 43/100 [00:10<00:13,  4.20it/s]", Bar("", "43/100", 0.43, "00:10<00:13,  4.20it/s")),
        ("\x1b[32mtrain:  50%|#####     | 1.50k/3.00k [00:10<?]\x1b[0m", Bar("train", "1.50k/3.00k", 0.5, "00:10<?")),
        ("3/10 ━━━━━━━━ 5s 20ms/step - loss: 0.12", Bar("", "3/10", 0.3, "5s 20ms/step - loss: 0.12")),
        ("43/100 [=====>....] - ETA: 5s", Bar("", "43/100", 0.43, "ETA: 5s")),
        ("1/0 ━━━ 5s", None),
        ("50% of 3/4", None),
        ("and/or", None),
        ("", None),
    ],
)
def test_the_bars_of_tqdm_and_keras_are_told_from_other_lines(line: str, bar: Bar | None) -> None:
    assert of_line(line) == bar

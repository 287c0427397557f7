"""docs/kubeflow.md tells the truth: its Role is what the code asks for, and its options and messages are there."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.providers.kubeflow import access_review

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "kubeflow.md").read_text(encoding="utf-8")
# What the cluster says, and not we.
FOREIGN = {
    "violates PodSecurity", "exceeded quota", "Insufficient nvidia.com/gpu", "Insufficient cpu", "node(s) had taint …",
    "ErrImagePull", "ImagePullBackOff", "container has runAsNonRoot and image will run as root", "OOMKilled",
}  # fmt: skip


def test_the_role_is_the_one_that_the_provider_asks_for() -> None:
    rules = access_review.as_yaml("NAMESPACE", access_review.TRAIN_JOBS, (access_review.RUNTIMES,))
    assert f"```yaml\n{rules}\n```" in PAGE


def test_each_option_of_the_provider_is_there_and_no_other() -> None:
    table = PAGE.partition("| `sky.Kubeflow(…)` | |")[2].partition("\n\n")[0]
    named = {
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1:2][0] if row else "")
    }
    options = {field.name for field in dataclasses.fields(sky.Kubeflow)} - {"resolved"}
    assert named == options


def _messages() -> list[str]:
    table = PAGE.partition("| It says | What to do |")[2]
    return [
        text
        for row in table.splitlines()
        if row.startswith("| `")
        for text in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]


@pytest.mark.parametrize("text", [text for text in _messages() if text not in FOREIGN])
def test_a_message_of_the_page_is_one_that_the_code_says(text: str) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "sky_jupyter").rglob("*.py")]
    # Strings go over several lines there, and have names where the page has an example.
    code = re.sub(r'"\s+f?"', "", "\n".join(sources))
    words = r"[^\n]{1,60}".join(
        re.escape(part.strip()) for part in re.split(r"…|create trainjobs|flock", text) if part.strip()
    )
    assert re.search(words, code), text

"""Script that fetches models of the Hub, ``NAME[@REVISION]``, into the cache.

The plugin `huggingface` runs it on each machine. If there is a token, the variable HF_TOKEN has it.
"""

from __future__ import annotations

import sys

# Files for frameworks other than torch and JAX, which read safetensors.
_OTHERS = ["*.msgpack", "*.h5", "*.ot", "*.tflite", "*.onnx", "onnx/*", "openvino/*", "coreml/*"]
_PICKLES = ["pytorch_model*.bin", "pytorch_model*.bin.index.json"]


def fetch(model: str) -> str:
    """Fetch one repository into the cache, and return its folder."""
    from huggingface_hub import HfApi, snapshot_download

    name, _, revision = model.partition("@")
    files = HfApi().list_repo_files(name, revision=revision or None)
    # If the newer format is available, the older one has the same weights.
    left_out = [*_OTHERS, *(_PICKLES if any(file.endswith(".safetensors") for file in files) else [])]
    return snapshot_download(name, revision=revision or None, ignore_patterns=left_out)


def main(models: list[str]) -> int:
    """Fetch models in order, and return the exit status; stop at the first failure."""
    for model in models:
        print(f"fetching {model}", flush=True)
        try:
            folder = fetch(model)
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()
            print(f"{model} could not be fetched: {type(error).__name__}: {' '.join(first[:3])}", flush=True)
            return 1
        print(f"{model} is in {folder}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

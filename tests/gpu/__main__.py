"""``python tests/gpu``: runs the checks with this Python as it is, and writes the table; ``python3 dev.py gpu`` is it.

The standard library is all that it needs until what the package needs has been found, or put beside.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if "tests" not in sys.modules:
    # Some packages install one of this name.
    ours = types.ModuleType("tests")
    ours.__path__ = [str(ROOT / "tests")]
    sys.modules["tests"] = ours
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.gpu import runner, supplies, table  # noqa: E402 - `tests` is said above to be ours

SECONDS = 450.0
INSIDE = "--inside"
HOW = "on a machine with one, whose Python has torch or jax with CUDA: python3 dev.py gpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and do it; 1 where a check failed, 2 where nothing could be begun."""
    parser = argparse.ArgumentParser(prog="dev.py gpu", description="Run the checks that need a GPU, with this Python.")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="wheels of what this Python lacks")
    parser.add_argument("--fetch", type=Path, metavar="DIR", help="download those wheels, on a machine with a network")
    parser.add_argument("--python", default=".".join(map(str, sys.version_info[:2])), help="for which Python")
    parser.add_argument("--arch", default=os.uname().machine, help="for which processor: x86_64 or aarch64")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the page goes, instead of docs/gpu.md")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: run what can be; no result")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long all of it may take")
    parser.add_argument("-k", dest="some", default="", help="those checks alone whose keys have one of these words")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        if options.fetch is not None:
            return supplies.fetch(options.fetch, options.python, options.arch)
        if options.device == "cuda" and not table.gpus():
            raise supplies.LacksError(f"there is no GPU that nvidia-smi shows; {HOW} (--device cpu: what a CPU can)")
        with tempfile.TemporaryDirectory(prefix="sky-gpu-") as folder:
            variables = supplies.supply(options.wheels, Path(folder))
            return run(options, {**os.environ, **variables}, began)
    except supplies.LacksError as error:
        print(f"dev.py gpu: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace, env: dict[str, str], began: float) -> int:
    """Run the checks and write what they found."""
    # Ranks would compile all that they import, each time.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    if options.device == "cpu":
        env["JAX_PLATFORMS"] = "cpu"
    folder = options.out or ROOT / "artifacts" / "gpu"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "gpu.log"
    log.unlink(missing_ok=True)
    jobs, facts = listed(env, options.some)

    def command(words: Path, keys: Sequence[str]) -> list[str]:
        return [*runner.this_python(Path(__file__).parent), INSIDE, options.device, str(words), *keys]

    def tell(row: table.Row) -> None:
        print(f"{row.seconds:6.1f} s  {row.result:8}  {row.name}: {row.figure}".rstrip(": "), flush=True)

    rows = runner.Runner(command, env, log, options.seconds - (time.monotonic() - began), tell).run(jobs)
    page = table.write(folder, rows, facts)
    text = table.text(rows, facts)
    print(f"\n{text}\n\nThe page is {page}; what was printed is {log}")
    if options.out is None and options.device == "cuda":
        table.PAGE.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
        print(f"{table.PAGE} has it too")
    return int(any(row.result == table.FAILED for row in rows))


def listed(env: dict[str, str], some: str) -> tuple[list[runner.Job], dict[str, str]]:
    """The checks and the machine, as a process says them that has all packages."""
    done = subprocess.run(
        [*runner.this_python(Path(__file__).parent), INSIDE, "list"], env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise supplies.LacksError(f"the checks cannot be read:\n{done.stderr}")
    told = json.loads(done.stdout.splitlines()[-1])
    jobs = [runner.Job(**one) for one in told["checks"]]
    return [job for job in jobs if not some or any(word in job.key for word in some.split(","))], told["machine"]


# In the process that runs checks.


def inside(arguments: Sequence[str]) -> int:
    """Run checks by their keys, and write into a file what becomes of each; ``list`` prints them all."""
    from tests.gpu.checks import Bench, registered

    if arguments[0] == "list":
        checks = [{"key": one.key, "name": one.name, "limit": one.limit} for one in registered().values()]
        print(json.dumps({"checks": checks, "machine": table.machine()}))
        return 0
    device, words, *keys = arguments
    bench = Bench(device)
    for key in keys:
        result, figure = outcome(key, bench)
        with open(words, "a", encoding="utf-8") as told:
            told.write(json.dumps({"result": result, "figure": figure}) + "\n")
    bench.drop()
    return 0


def outcome(key: str, bench: object) -> tuple[str, str]:
    """What becomes of one check: its result and figure."""
    from tests.gpu.checks import Bench, LeftOut, registered

    assert isinstance(bench, Bench)
    one = registered()[key]
    print(f"\n== {one.key}: {one.name}", flush=True)
    if lacks := set(one.needs) - set(bench.frameworks(*one.needs)):
        return table.SKIPPED, f"this Python lacks {', '.join(sorted(lacks))}"
    try:
        figure = one.work(bench)
    except LeftOut as error:
        return table.SKIPPED, str(error)
    except BaseException as error:
        traceback.print_exc()
        bench.drop()
        return table.FAILED, f"{type(error).__name__}: {error}"
    return (table.PASSED if bench.has_gpu else table.ON_CPU), figure


if __name__ == "__main__":
    sys.exit(inside(sys.argv[2:]) if sys.argv[1:2] == [INSIDE] else main())

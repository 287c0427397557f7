"""Lines that run scripts: torchrun's command line is read as torchrun reads it, and the rest is the script's."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError

from sky_jupyter.magics.launcher_options import ACCELERATE, TORCHRUN
from sky_jupyter.magics.option_table import SCRIPTS, flags_of
from sky_jupyter.magics.parse_script_line import LAUNCHERS
from sky_jupyter.magics.parsing import HelpRequested, parse


def read(line: str):
    given = parse(line, cell=False)
    assert given.script is not None
    return given, given.script


def test_what_stands_behind_the_script_is_its_own():
    given, script = read("torchrun --nproc-per-node=4 --detach --name night train.py --epochs 3 --name x -- --detach")
    assert (given.detach, given.name) == (True, "night")
    assert (script.kind, script.target, script.per_node) == ("file", "train.py", 4)
    assert script.args == ("--epochs", "3", "--name", "x", "--", "--detach")


def test_flags_are_spelled_as_torchrun_takes_them():
    for flag in ("--nproc_per_node 2", "--nproc-per-node=2", "--nproc_per 2", "--nproc 2"):
        assert read(f"torchrun {flag} train.py")[1].per_node == 2
    assert read("torchrun --nnodes 1:4 train.py")[1].nodes == (1, 4)
    assert read("torchrun --standalone train.py")[1].nodes == (1, 1)
    assert read("torchrun --max-restarts 3 --rdzv-id job7 --role actor train.py")[1].restarts == 3
    assert read("torchrun --no-python ./program x")[1].kind == "program"


def test_a_module_stands_behind_its_flag():
    _, script = read("run -m pkg.train --lr 0.1")
    assert (script.kind, script.target, script.args) == ("module", "pkg.train", ("--lr", "0.1"))
    assert script.line == "run -m pkg.train --lr 0.1"


def test_what_the_pool_does_by_itself_is_not_heeded_and_said():
    _, script = read("torchrun --rdzv-backend=c10d --master_port 29501 train.py")
    assert script.notes == ("ignored, as the pool does that itself: --rdzv-backend, --master-port",)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torchrun --tee 3 train.py", "cannot hold on a pool: each rank's output has a tab"),
        ("torchrun --log-dir logs train.py", "cannot hold on a pool"),
        ("torchrun --nproc-per-node many train.py", "a number from 1 to 1024, gpu .* or auto .*, not 'many'"),
        ("torchrun --nnodes 4:2 train.py", "a number of nodes such as 2, or 1:4"),
        ("torchrun --standalone --nnodes 2 train.py", "--standalone is for one node"),
        ("torchrun --nproc-per-nod3 4 train.py", "did you mean '--nproc-per-node'"),
        ("torchrun --max-restarts -1 train.py", "a number from 0 to"),
        ("torchrun --m 3 train.py", "may be --master-addr or"),
        ("torchrun --nnodes", "--nnodes takes a value"),
        ("torchrun", r"the script is missing: `%sky torchrun train\.py`"),
        ("run --nproc-per-node 2 train.py", "is an option of torchrun: `%sky torchrun --nproc-per-node …`"),
        ("accelerate train", "`%sky accelerate launch` runs a script, not 'train'"),
        ("accelerate launch --gpu_ids 0 train.py", "cannot hold on a pool: the pool shares"),
        ("torchrun -m --no-python x", "contradict each other"),
        ("torchrun --standalone=1 train.py", "takes no value"),
        ("torchrun --on x train.py", "--on takes ranks"),
        ("torchrun --push x train.py", "unknown option --push"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(line: str, said: str):
    with pytest.raises(UsageError, match=said):
        parse(line, cell=False)


@pytest.mark.parametrize("verb", SCRIPTS)
def test_no_option_of_ours_is_a_launchers_too(verb: str):
    theirs = {flag for one in LAUNCHERS[verb] for flag in one.flags}
    assert theirs.intersection(flags_of(verb)) <= set()


@pytest.mark.parametrize("verb", SCRIPTS)
def test_help_lists_the_launchers_options_too(verb: str):
    with pytest.raises(HelpRequested) as told:
        parse(f"{verb} --help", cell=False)
    assert all(one.flags[0] in str(told.value) for one in LAUNCHERS[verb])


def test_accelerates_options_are_kept_for_accelerate_and_its_numbers_are_the_pools():
    line = "accelerate launch --cpu --mixed-precision=bf16 --num_processes 4 --num-machines 2 -m pkg.train --lr 1"
    given, script = read(f"{line} --cpu")
    assert script.options == ("--cpu", "--mixed_precision", "bf16")
    assert (script.processes, script.nodes, script.kind, script.args) == (4, (2, 2), "module", ("--lr", "1", "--cpu"))
    assert script.pool_options() == {"nodes": 2, "ranks_per_node": 2}
    assert given.verb == "accelerate"


@pytest.mark.slow
def test_the_table_has_all_options_of_accelerate():
    launch = pytest.importorskip("accelerate.commands.launch")
    theirs = {
        flag: action.nargs != 0
        for action in launch.launch_command_parser()._actions
        for flag in action.option_strings
        # These are options of ours.
        if flag not in ("-h", "--help", "--quiet", "-q", "--env")
    }
    assert {flag: bool(one.metavar) for one in ACCELERATE for flag in one.flags} == theirs


@pytest.mark.slow
def test_the_table_has_all_options_of_torchrun():
    run = pytest.importorskip("torch.distributed.run")
    theirs = {
        flag: action.nargs != 0
        for action in run.get_args_parser()._actions
        for flag in action.option_strings
        if flag not in ("-h", "--help")
    }
    assert {flag: bool(one.metavar) for one in TORCHRUN for flag in one.flags} == theirs

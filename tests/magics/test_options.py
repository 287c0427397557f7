"""What a line of ``%%sky`` or ``%sky`` means, and how each mistake in one is told."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from IPython.core.error import UsageError

from sky_jupyter.magics.option_table import (
    CELL,
    CONFIG,
    NAME,
    PATHS,
    POOL,
    RANK,
    SCRIPTS,
    TARGETS,
    VERBS,
    chosen,
    flags_of,
    switches_of,
    targets_text,
    without_values,
)
from sky_jupyter.magics.parsing import HelpRequested, ParsedLine, parse
from sky_jupyter.plugins import parse_plugins
from sky_jupyter.providers import AWS, Kubeflow, Kubernetes, Local
from sky_jupyter.spec.options import DEFAULT_GRACE
from sky_jupyter.spec.pool_spec import Accelerator, Image, PoolSpec


def cell(line: str) -> ParsedLine:
    return parse(line, cell=True)


def verb(line: str) -> ParsedLine:
    return parse(line, cell=False)


def refusal(line: str, *, over_cell: bool = True) -> str:
    """What the user is told; one line, whatever it is about."""
    with pytest.raises(UsageError) as caught:
        parse(line, cell=over_cell)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


# What each option means.


def test_a_line_without_options_asks_for_one_local_node_or_what_there_is():
    given = cell("")
    assert given == ParsedLine(verb=None)
    assert given.spec() == PoolSpec(provider=Local())
    live = PoolSpec(provider=Local(), nodes=3, ranks_per_node=2, name="trainers", image=Image(env={"A": "1"}))
    assert given.spec(live) == live


def test_every_option_is_read_into_its_value():
    given = cell(
        '--nodes 2 --ranks-per-node 4 --plugins "keras(backend=torch),torch" --provider local --pip "x>=1,y" '
        "--python 3.12 --env A=1 --name trainers --on 0,2-4 --out losses --only 2-3 --push a,b --no-capture c "
        "--timeout 1.5 --grace 0 --quiet --keep --idle-timeout 30m --journal 64MB --saved 5MB --detach --shard x,y "
        "--blob-limit 2GB --ttl 2h --include tests"
    )
    assert given.spec() == PoolSpec(
        provider=Local(),
        nodes=2,
        ranks_per_node=4,
        image=Image(python="3.12", pip=("x>=1", "y"), env={"A": "1"}, includes=("tests",)),
        plugins=parse_plugins("keras(backend=torch),torch"),
        name="trainers",
        ttl=7200.0,
        keep=True,
        idle_timeout=1800.0,
        journal=64 * 10**6,
        blob_limit=2 * 10**9,
    )
    assert (given.on, given.only, given.out, given.push) == ((0, 2, 3, 4), (2, 3), "losses", ("a", "b"))
    assert given.shard == ("x", "y")
    assert (given.no_capture, given.timeout, given.grace, given.quiet) == (("c",), 1.5, 0.0, True)
    assert given.detach
    assert (given.saved, cell("").saved) == (5 * 10**6, None)
    assert not cell("").detach
    assert cell("").grace == DEFAULT_GRACE


def test_a_line_asks_for_machines_of_aws() -> None:
    given = cell("--provider aws --accelerator A100:8 --nodes 2 --spot --region us-east-1 --profile lab").spec()
    assert given == PoolSpec(
        provider=AWS(region="us-east-1", profile="lab"),
        accelerator=Accelerator("A100", 8),
        nodes=2,
        allocation="spot",
    )
    assert cell("--provider aws").spec() == PoolSpec(provider=AWS())
    # Of the pool that there is, only what is given changes.
    assert cell("--allocation on-demand --region eu-west-1").spec(given) == replace(
        given, allocation="on-demand", region="eu-west-1"
    )


def test_a_line_asks_for_pods(tmp_path: Path) -> None:
    text = (
        "--provider kubeflow --namespace people --resources cpu=4,nvidia.com/gpu=1 --queue team --plugins jax --offline"
    )
    provider = Kubeflow(
        namespace="people",
        resources={"cpu": 4, "nvidia.com/gpu": 1},  # type: ignore[arg-type]
        queue="team",
        offline=True,
    )
    assert cell(text).spec().provider == provider
    assert cell("--provider kubernetes --image python:3.12").spec().provider == Kubernetes(image="python:3.12")
    (tmp_path / "pool.toml").write_text(
        'provider = "kubeflow"\nnamespace = "people"\nresources = "cpu=4,gpu=1"\nqueue = "team"\noffline = true\n'
    )
    assert cell(f"--config {tmp_path}/pool.toml").spec().provider == provider
    for verb in ("offers", "sweep"):
        given = parse(f"{verb} --provider kubeflow --namespace people", cell=False)
        assert given.pool["provider"] == Kubeflow(namespace="people")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--provider kubeflow --namespace People", "namespace must be a namespace's name, such as 'people'"),
        ("--provider kubernetes --queue team", "--queue is for --provider kubeflow"),
        ("--provider aws --resources cpu=1", "--resources is for --provider kubeflow or kubernetes"),
        ("--provider kubeflow --resources cpu", "resources must be resources such as"),
        ("--provider kubeflow --ami ami-1", "--ami is for --provider aws"),
    ],
)
def test_a_wrong_line_for_pods_is_told(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        cell(text)
    assert told in str(caught.value)


def test_a_section_of_a_file_asks_for_machines_of_aws(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text(
        '[pool.gpu]\nprovider = "aws"\nregion = "us-east-1"\nregions = ["us-east-1", "us-west-2"]\nspot = true\n'
        'instance-type = "g5.xlarge"\nssh_from = "10.0.0.0/8"\n'
    )
    spec = cell(f"--config {tmp_path}/pool.toml#pool.gpu").spec()
    provider = AWS(region="us-east-1", regions=("us-east-1", "us-west-2"), instance_type="g5.xlarge")
    assert (spec.provider, spec.allocation) == (provider, "spot")
    assert isinstance(spec.provider, AWS)
    assert spec.provider.ssh_from == "10.0.0.0/8"


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("head", (0,)), ("0", (0,)), ("3,1", (1, 3)), ("0,2-5", (0, 2, 3, 4, 5)), ("1-1", (1,)), ("' 0 , 1 '", (0, 1))],
)
def test_ranks_are_numbers_ranges_or_the_head(text, ranks):
    assert cell(f"--on {text}").on == ranks
    assert cell(f"--only {text}").only == ranks


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", (0, 1, 2, 3, 4)),
        ("-1", (4,)),
        ("0,-2", (0, 3)),
        ("::2", (0, 2, 4)),
        ("1:3,4", (1, 2, 4)),
        ("=-2:", (3, 4)),
        ("-9", (-9,)),
        ("7:", ()),
    ],
)
def test_ranks_are_counted_from_the_end_and_sliced_as_in_python(text, ranks):
    given = cell(f"--on{text}" if text.startswith("=") else f"--on {text}")
    assert chosen(given.on, 5) == ranks


@pytest.mark.parametrize(
    ("line", "variables"),
    [
        ("--env A=1", {"A": "1"}),
        ("--env A=1,B=2", {"A": "1", "B": "2"}),
        ("--env A=1 --env B=2", {"A": "1", "B": "2"}),
        ("--env PATHS=/a,/b", {"PATHS": "/a,/b"}),
        ("--env A=", {"A": ""}),
        ("--env URL=http://x?a=b", {"URL": "http://x?a=b"}),
        ("--env 'TEXT=two words, B=2'", {"TEXT": "two words", "B": "2"}),
    ],
)
def test_variables_are_assignments(line, variables):
    assert cell(line).spec().image.env == variables


def test_lists_may_be_given_in_several_pieces():
    given = cell("--pip a --pip 'b, c' --push x --push y,z")
    assert given.spec().image.pip == ("a", "b", "c")
    assert given.push == ("x", "y", "z")


@pytest.mark.parametrize(
    "text",
    [
        '--plugins "keras(backend=torch),torch"',
        "--plugins 'keras(backend=\"torch\"), torch'",
        "--plugins keras(backend=torch),torch",
        '--plugins=keras(backend="torch"),torch',
    ],
)
def test_plugins_take_arguments_however_they_are_quoted(text):
    assert cell(text).spec().plugins == parse_plugins("keras(backend=torch),torch")


def test_options_change_only_what_they_name():
    live = PoolSpec(provider=Local(), nodes=2, image=Image(pip=("x",), env={"A": "1"}), name="n")
    assert cell("--nodes 3").spec(live).differences(live) == ["nodes: 3 -> 2"]
    changed = cell("--env B=2").spec(live)
    assert changed.image == Image(pip=("x",), env={"B": "2"})


@pytest.mark.parametrize(
    ("text", "number"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("30m", 1800), ("12h", 43_200), ("2D", 172_800), ("' 90 s '", 90)],
)
def test_a_length_of_time_may_have_a_unit(text, number):
    assert verb(f"up --keep --idle-timeout {text}").spec().idle_timeout == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1048576", 1 << 20),
        ("1000kb", 10**6),
        ("64MB", 64 * 10**6),
        ("64MiB", 1 << 26),
        ("1.5g", 1_500_000_000),
        ("1TB", 10**12),
        ("0.5TiB", 1 << 39),
    ],
)
def test_a_size_may_have_a_unit(text, number):
    assert cell(f"--journal {text}").spec().journal == number


def test_nodes_stand_alone_by_a_switch():
    asked = verb("up --nodes 2 --no-cluster")
    assert not asked.spec().options.cluster
    assert verb("up").spec(asked.spec()) == asked.spec()
    with pytest.raises(UsageError, match="each rank is a world of its own, and jax needs them"):
        cell("--nodes 2 --plugins jax --no-cluster")


@pytest.mark.parametrize("line", ["", "up ", "restart "])
def test_a_pool_is_kept_by_a_switch_wherever_pools_are_made(line):
    asked = parse(f"{line}--keep", cell=not line)
    assert asked.pool == {"keep": True}
    assert asked.spec().keep
    live = PoolSpec(provider=Local(), keep=True, idle_timeout=60.0, journal=1 << 21)
    assert parse(line or "--quiet", cell=not line).spec(live) == live


def test_attach_takes_a_pools_name_with_or_without_its_flag():
    assert verb("attach") == ParsedLine(verb="attach")
    assert verb("attach night") == ParsedLine(verb="attach", target="night", name="night")
    assert verb("attach --name night") == ParsedLine(verb="attach", name="night")
    for line in ("attach night --take-over", "attach --take-over night"):
        assert verb(line) == ParsedLine(verb="attach", target="night", name="night", take_over=True)


@pytest.mark.parametrize("name", ["wait", "logs"])
def test_a_run_is_named_by_its_id_or_how_that_begins(name):
    assert verb(name) == ParsedLine(verb=name)
    assert verb(f"{name} 3F9a2c1b") == ParsedLine(verb=name, target="3f9a2c1b")
    assert verb(f"{name} 3") == ParsedLine(verb=name, target="3")
    assert verb(f"{name} --name x") == ParsedLine(verb=name, name="x")


@pytest.mark.parametrize("line", ["logs 3f --rank 0,2-3", "logs --rank 0,2-3 3f", "logs --rank=0,2-3 3f"])
def test_logs_are_of_some_ranks(line):
    assert verb(line) == ParsedLine(verb="logs", target="3f", ranks=(0, 2, 3))


def test_logs_are_of_some_nodes_machines():
    assert verb("logs --pod 0,2-3 --previous") == ParsedLine(verb="logs", pods=(0, 2, 3), previous=True)
    assert verb("logs --pod head --last 20 --name x") == ParsedLine(verb="logs", pods=(0,), last=20, name="x")


@pytest.mark.parametrize("line", ["put a --on 0,2-3 b/", "put a b/ --on 0,2-3", "put --on=0,2-3 a b/"])
def test_files_go_to_some_nodes(line):
    assert verb(line) == ParsedLine(verb="put", target="a", to="b/", on=(0, 2, 3))


def test_files_come_from_the_head_under_their_own_name():
    assert verb("get 'my results'") == ParsedLine(verb="get", target="my results")
    assert verb("get out --name night").name == "night"


def test_a_variable_is_pulled_from_some_ranks_under_another_name():
    assert verb("pull x --on head --as y --stack") == ParsedLine(
        verb="pull", target="x", on=(0,), alias="y", stack=True
    )
    assert verb("pull --concat x --name night") == ParsedLine(verb="pull", target="x", name="night", concat=True)


def test_nodes_are_resized_to_a_number_or_by_hosts_and_numbers():
    assert verb("resize 3 --name night --yes") == ParsedLine(verb="resize", target="3", name="night", yes=True)
    assert verb("resize --add a,b:2 --add c --remove 2,4-5") == ParsedLine(
        verb="resize", add=("a", "b:2", "c"), remove=(2, 4, 5)
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("resize", "resize takes N, how many nodes there shall be, or --add and --remove, which ones"),
        ("resize 2 --remove 1", "resize takes N, how many"),
        ("resize three", "resize takes a whole number, not 'three'"),
        ("resize 2 3", "resize takes one N, not '2' and '3'"),
        ("resize --remove 1 --remove 2", "--remove is given 2 times"),
        ("resize --remove x", "--remove takes nodes such as 2,4-5, not 'x'"),
        ("resize --nodes 2", "unknown option --nodes"),
    ],
)
def test_what_cannot_be_resized_is_told_in_a_line(line, told):
    assert told in refusal(line, over_cell=False)


def test_runs_are_of_one_pool_or_of_all():
    assert verb("runs") == ParsedLine(verb="runs")
    assert verb("runs --name x") == ParsedLine(verb="runs", name="x")


@pytest.mark.parametrize("name", [name for name in VERBS if name not in ("clean", "offers", "sweep", *SCRIPTS)])
def test_each_verb_takes_its_own_options(name):
    needed = f"{name} x" if name in (*PATHS, "pull") else f"{name} 2" if name in ("resize", "debug") else name
    # Options behind the command would be the command's.
    behind = " -- ls" if name == "exec" else ""
    assert verb(f"{needed} --name trainers{behind}").verb == name
    assert verb(f"{needed} --name trainers{behind}").name == "trainers"
    if name == "auto":
        # Its options are those of the cells that it stands for.
        return
    if name in ("up", "restart"):
        assert verb(f"{name} --nodes 2 --plugins jax").spec().nodes == 2
    else:
        assert "unknown option --nodes" in refusal(f"{needed} --nodes 2", over_cell=False)
    assert "unknown option --out" in refusal(f"{needed} --out x", over_cell=False)


def test_a_command_is_what_stands_behind_the_dashes_as_it_is():
    given = verb("""exec --on 0 --detach -- for f in *; do echo "a  b" -- '$f' | wc; done""")
    assert (given.on, given.detach, given.per_rank) == ((0,), True, False)
    assert given.target == """for f in *; do echo "a  b" -- '$f' | wc; done"""
    assert verb("exec --per-rank -- -x").target == "-x"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("exec", "the command is missing, behind --, as in `%sky exec -- nvidia-smi`"),
        ("exec --", "the command is missing"),
        ("exec ls data", "as in `%sky exec -- ls data`"),
        ("exec --nam x -- ls", "unknown option --nam; did you mean '--name'?"),
        ("exec ls -- data", "'ls' is not an option"),
        ("exec --on x -- ls", "--on takes ranks"),
    ],
)
def test_a_line_without_a_command_is_refused(line, told):
    assert told in refusal(line, over_cell=False)


def test_a_line_without_a_verb_asks_for_the_status():
    assert verb("").verb == "status"
    assert verb("down --all").all


# What cannot be.


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--nodez 2", "unknown option --nodez; did you mean '--nodes'?"),
        ("--node 2", "did you mean '--nodes'?"),
        ("--rank-per-node=2", "unknown option --rank-per-node; did you mean '--ranks-per-node'?"),
        ("--zzjjvv", "options are --nodes, --ranks-per-node"),
        ("-n 2", "unknown option -n"),
        ("2", "'2' is not an option"),
        ("--plugins jax, keras", "a value with a space in it needs quotes"),
        ("--nodes two", "--nodes takes a whole number, not 'two'"),
        ("--nodes 1.5", "--nodes takes a whole number, not '1.5'"),
        ("--nodes 0", "nodes must be a whole number from 1 to"),
        ("--nodes -1", "nodes must be a whole number from 1 to"),
        ("--nodes", "expected one argument"),
        ("--nodes 2 --nodes 3", "--nodes is given 2 times"),
        ("--ranks-per-node 1000", "ranks_per_node must be a whole number"),
        ("--plugins jaxx", "unknown plugin 'jaxx'; did you mean 'jax'?; plugins are jax, keras, torch, "),
        ("--plugins jax(cudda=cu128)", "did you mean 'cuda'?"),
        ("--plugins keras,jax", "write --plugins jax,keras"),
        ("--plugins 'jax(cuda=cu'", "a closing ) is missing"),
        ("--accelerator A1000", "--accelerator: unknown accelerator 'A1000'; did you mean 'A100'?"),
        ("--accelerator H100-70GB", "H100 has 80 or 94 GB, not 70"),
        (f"--plugins huggingface(token=hf_{'x' * 30})", "token is a secret, and a cell is saved with its notebook"),
        ("--provider local --profile lab --user ada", "--user, --profile are for --provider aws"),
        ("--provider ssh --hosts a --spot --ami ami-1", "--ami is for --provider aws"),
        ("--provider aws --hosts a", "--hosts is for --provider ssh"),
        ("--provider local --jump a", "--jump is for --provider ssh or aws"),
        ("--provider aws --instance-type big", "instance_type must be an instance type such as 'g5.xlarge'"),
        ("--provider aws --spot --allocation on-demand", "--spot and --allocation contradict each other"),
        ("--allocation spott", "did you mean 'spot'?"),
        ("--provider lokal", "unknown provider 'lokal'; did you mean 'local'?"),
        ("--pip 'numpy=>1'", "requirement 'numpy=>1' cannot be read"),
        ("--python 2.7", "python '2.7' is not supported; use one of 3.10 to 3.14"),
        ("--env A", "--env takes K=V, with a comma before another K=V; what was given may be secret"),
        ("--env 1A=x", "environment variable '1A' is not a valid name"),
        ("--env =x", "environment variable '' is not a valid name"),
        ("--env A=1,A=2", "--env sets A 2 times"),
        ("--env A=1 --env A=2", "--env sets A 2 times"),
        ("--name 'a b'", "pool name 'a b' is not valid"),
        ("--on=-0", "--on takes ranks such as 0,2-5, -1 or ::2, or head, or all, not '-0'"),
        ("--on ::0", "--on takes ranks"),
        ("--on 0:1:2:3", "--on takes ranks"),
        ("--on a:b", "--on takes ranks"),
        ("--on 3-1", "--on takes ranks"),
        ("--on ''", "--on takes ranks"),
        ("--on tail", "--on takes ranks"),
        ("--on 0-99999999999", "--on takes ranks"),
        ("--on 0 --only 1", "--only asks for rank 1, which --on leaves out"),
        ("--on 0-1 --only 1-3", "--only asks for ranks 2-3, which --on leaves out"),
        ("--out 1x", "--out takes a Python name, not '1x'"),
        ("--out class", "--out takes a Python name, not 'class'"),
        ("--push a.b", "--push takes names with a comma between, not 'a.b'"),
        ("--no-capture 'a b'", "--no-capture takes names with a comma between, or all, not 'a b'"),
        ("--push a,b --no-capture b", "b cannot be in both --push and --no-capture"),
        ("--shard a,b --no-capture b", "b cannot be in both --shard and --no-capture"),
        ("--shard a --push a", "a cannot be in both --push and --shard"),
        ("--shard 'a b'", "--shard takes names with a comma between, not 'a b'"),
        ("--blob-limit much", "--blob-limit takes a size such as 64MB or 1GB, not 'much'"),
        ("--blob-limit 9999TB", "blob_limit must be a whole number of bytes from 0 to"),
        ("--timeout 0", "--timeout takes a number of seconds above 0, not '0'"),
        ("--timeout nan", "--timeout takes a number"),
        ("--timeout 10s", "--timeout takes a number"),
        ("--grace -1", "--grace takes a number of seconds, not '-1'"),
        ("--grace inf", "--grace takes a number of seconds"),
        ("--quiet=yes", "--quiet"),
        ("--kep", "unknown option --kep; did you mean '--keep'?"),
        ("--detatch", "unknown option --detatch; did you mean '--detach'?"),
        ("--take-over", "unknown option --take-over"),
        ("--idle-timeout soon", "--idle-timeout takes a length of time such as 90s, 30m or 12h, not 'soon'"),
        ("--idle-timeout 12x", "--idle-timeout takes a length of time"),
        ("--idle-timeout inf", "--idle-timeout takes a length of time"),
        ("--idle-timeout -5", "--idle-timeout takes a length of time"),
        ("--idle-timeout 0", "idle_timeout must be a number of seconds from 10"),
        ("--idle-timeout 5000d", "idle_timeout must be a number of seconds from 10 to ten years"),
        ("--idle-timeout 1" + "0" * 400, "--idle-timeout takes a length of time"),
        ("--journal lots", "--journal takes a size such as 64MB or 1GB, not 'lots'"),
        ("--journal 1PB", "--journal takes a size"),
        ("--journal 100KB", "journal must be a whole number of bytes from 1000000 to 1000000000000, not 100000"),
        ("--journal 2TB", "journal must be a whole number of bytes"),
        ("--name 'x", "a quote that is not closed?"),
        ("--plugins jax keras --nodes 2", "'keras' is not an option; did you mean --plugins jax,keras?"),
    ],
)
def test_a_mistake_over_a_cell_is_told_in_a_line(line, told):
    text = refusal(line)
    assert told in text
    assert text.startswith("%%sky: ")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("statsu", "unknown verb 'statsu'; did you mean 'status'?; verbs are up, auto, status"),
        ("xyzzy", "unknown verb 'xyzzy'; verbs are up, auto, status"),
        ("--nodes 2", "a verb comes first, such as `%sky up --nodes 2`"),
        ("down a b", "down takes one NAME, not 'a' and 'b'"),
        ("down a --name a", "'a' and --name say each which pool is meant; give one of them"),
        ("down --all a", "--all and 'a' contradict each other"),
        ("down --all --name x", "--all and --name contradict each other"),
        ("up --al", "unknown option --al"),
        ("restart --detach", "unknown option --detach"),
        ("attach a b", "attach takes one NAME, not 'a' and 'b'"),
        ("attach 'a b'", "pool name 'a b' is not valid"),
        ("attach --takeover", "unknown option --takeover; did you mean '--take-over'?"),
        ("attach night --name night", "'night' and --name say each which pool is meant; give one of them"),
        ("wait 3f --name night", "'3f' and --name say each which run is meant; give one of them"),
        ("wait night", "wait takes a run's id or how it begins, such as 3f9a2c1b, not 'night'"),
        ("wait 3f9a2c1b0", "wait takes a run's id"),
        ("wait ''", "wait takes a run's id"),
        ("pull", "pull takes NAME; NAME is missing"),
        ("pull a.b", "pull takes a Python name, not 'a.b'"),
        ("pull a b", "pull takes one NAME, not 'a' and 'b'"),
        ("logs 3f --pod 0", "--pod shows no run: it and run 3f contradict each other"),
        ("logs --pod 0 --rank 1", "it and --rank contradict each other"),
        ("logs --previous", "--previous is for --pod"),
        ("logs --pod one", "--pod takes nodes such as 0,2-5, or head, not 'one'"),
        ("pull a --stack --concat", "--stack and --concat contradict each other; give one of them"),
        ("pull a --as 1", "--as takes a Python name, not '1'"),
        ("put", "put takes LOCAL [REMOTE]; LOCAL is missing"),
        ("get --on 1", "get takes REMOTE [LOCAL]; REMOTE is missing"),
        ("put a b c", "put takes LOCAL [REMOTE], not 'a' and 'b' and 'c'; a path with a space in it needs quotes"),
        ("put ''", "put takes a path, not ''"),
        ("put a --on x", "--on takes nodes such as 0,2-5, -1 or ::2, or head, or all, not 'x'"),
        ("put a --onn 0", "unknown option --onn; did you mean '--on'?"),
        ("wait -1", "unknown option -1"),
        ("logs 3f --rank x", "--rank takes ranks such as 0,2-5, or head, not 'x'"),
        ("logs 3f --rnk 0", "unknown option --rnk; did you mean '--rank'?"),
        ("logs --rank", "expected one argument"),
        ("atach", "unknown verb 'atach'; did you mean 'attach'?"),
        (
            "up --plugins jax, keras",
            "'keras' is not an option; did you mean --plugins jax,keras? (a value with a space",
        ),
        ("up --pip=a b c", "'b' is not an option; did you mean --pip a,b,c?"),
    ],
)
def test_a_mistake_after_a_verb_is_told_in_a_line(line, told):
    text = refusal(line, over_cell=False)
    assert told in text
    assert text.startswith("%sky")


# Options from a file.


def test_a_section_of_a_file_gives_options_and_the_line_wins(tmp_path):
    path = tmp_path / "pools.toml"
    path.write_text(
        """
        nodes = 9
        [gpu.big]
        nodes = 2
        ranks-per-node = 4
        plugins = ["jax", "keras(backend=jax)"]
        pip = ["x>=1", "y"]
        env = { A = 1, TEXT = "a,B=2" }
        name = "trainers"
        on = [0, "2-3"]
        out = "losses"
        timeout = 1.5
        quiet = true
        keep = true
        idle-timeout = "2h"
        journal = 1048576
        detach = true
        """
    )
    given = cell(f"--config {path}#gpu.big --nodes 3 --out other")
    assert given.spec() == PoolSpec(
        provider=Local(),
        nodes=3,
        ranks_per_node=4,
        image=Image(pip=("x>=1", "y"), env={"A": "1", "TEXT": "a,B=2"}),
        plugins=parse_plugins("jax,keras(backend=jax)"),
        name="trainers",
        keep=True,
        idle_timeout=7200.0,
        journal=1 << 20,
    )
    assert given.detach
    assert (given.on, given.out, given.timeout, given.quiet) == ((0, 2, 3), "other", 1.5, True)


def test_a_file_without_sections_is_read_whole(tmp_path):
    path = tmp_path / "with space.toml"
    path.write_text('nodes = 2\nplugins = "jax,keras"\nenv = "A=1"\nquiet = false\n')
    given = cell(f"--config {shlex.quote(str(path))}")
    assert given.spec().nodes == 2
    assert given.spec().plugins == parse_plugins("jax,keras")
    assert given.spec().image.env == {"A": "1"}
    assert not given.quiet


def test_switches_in_a_file_can_be_off_and_the_line_turns_them_on(tmp_path):
    path = tmp_path / "pools.toml"
    path.write_text("keep = false\n")
    live = PoolSpec(provider=Local(), keep=True)
    assert verb(f"up --config {path}").spec(live).keep is False
    assert verb(f"up --config {path} --keep").spec(live).keep is True
    path.write_text("keep = true\nidle-timeout = 90\n")
    assert verb(f"restart --config {path}").spec().idle_timeout == 90.0


@pytest.mark.parametrize(
    ("content", "section", "told"),
    [
        ("nodez = 2", "", "unknown option 'nodez'; did you mean 'nodes'?"),
        ("ranks-per-node = 2\nranks_per_node = 2", "", "ranks_per_node is given twice"),
        ("config = 'x'", "", "unknown option 'config'"),
        ("xyzzy = 2", "", "unknown option 'xyzzy'"),
        ("[gpu]\nnodes = 2", "", "'gpu' is a section; write FILE.toml#gpu"),
        ("[gpu]\nnodes = 2", "#gqu", "has no section 'gqu'; did you mean 'gpu'?"),
        ("[gpu]\nnodes = 2", "#xyz", "has no section 'xyz'; it has gpu"),
        ("[gpu]\nnodes = 2", "#gpu.nodes", "'gpu.nodes' in"),
        ("[gpu]\nnodes = 2", "#gpu.nodes.x", "has no section 'gpu.nodes.x'"),
        ("nodes = 'two'", "", "--nodes takes a whole number, not 'two'"),
        ("nodes = true", "", "--nodes takes a whole number, not 'True'"),
        ("nodes = { a = 1 }", "", "nodes takes a whole number, and not a table"),
        ("quiet = 1", "", "quiet takes true or false, not 1"),
        ("keep = 'yes'", "", "keep takes true or false, not 'yes'"),
        ("kepp = true", "", "unknown option 'kepp'; did you mean 'keep'?"),
        ("take-over = true", "", "unknown option 'take-over'"),
        ("journal = '1KB'", "", "journal must be a whole number of bytes"),
        ("nodes = 0x1" + "0" * 5000, "", "the value of nodes is too large"),
        ("nodes = 1" + "0" * 5000, "", "is not TOML"),
        ("nodes = " + "[" * 5000, "", "is not TOML"),
        ("# " + "x" * (1 << 20), "", "is larger than 1 MB"),
        ("nodes = ", "", "is not TOML"),
        ("env = [1]", "", "--env takes K=V"),
        ("plugins = ['keras', 'jax']", "", "write --plugins jax,keras"),
    ],
)
def test_a_mistake_in_a_file_names_the_file_or_the_option(tmp_path, content, section, told):
    path = tmp_path / "pools.toml"
    path.write_text(content)
    assert told in refusal(f"--config {path}{section}")


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    assert "cannot be read: No such file" in refusal(f"--config {tmp_path}/none.toml")
    assert "cannot be read: Is a directory" in refusal(f"--config {tmp_path}")
    os.mkfifo(tmp_path / "pipe.toml")
    assert "cannot be read: it is not a file" in refusal(f"--config {tmp_path}/pipe.toml")
    assert "cannot be read: it is not a file" in refusal("--config /dev/zero")
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    assert "is not TOML" in refusal(f"--config {tmp_path}/latin.toml")
    assert "a file is missing; write FILE.toml#SECTION" in refusal("--config '#gpu'")
    assert "is not a path" in refusal("--config '~nobody-of-this-name/x.toml'")
    assert "--config is given 2 times" in refusal("--config a --config b")


# Help.


@pytest.mark.parametrize("line", ["--help", "-h", "--nodes 2 --help", "--on x --help"])
def test_help_names_every_option_of_a_cell(line):
    with pytest.raises(HelpRequested) as caught:
        cell(line)
    text = str(caught.value)
    for option in (*POOL, NAME, CONFIG, *CELL):
        assert option.flag in text
        assert option.help in text
    assert all(switch.flag in text and switch.help in text for switch in switches_of(None))


@pytest.mark.parametrize("name", VERBS)
def test_help_of_a_verb_names_its_options_only(name):
    with pytest.raises(HelpRequested) as caught:
        verb(f"{name} --help")
    text = str(caught.value)
    words = set(text.replace(",", " ").split())
    for option in (*POOL, NAME, CONFIG, *CELL, RANK):
        assert (option.flag in words) == (option.flag in flags_of(name))
    for flag in ("--all", "--keep", "--take-over", "--detach", "--quiet"):
        assert (flag in words) == (flag in flags_of(name))
    assert all(switch.help in text for switch in switches_of(name))
    if name in TARGETS:
        order = f"[options] {targets_text(name)}" if name == "exec" else f"{targets_text(name)} [options]"
        assert f"usage: %sky {name} {order}" in text
        assert all(f"  {target.metavar} " in text and target.help in text for target in TARGETS[name])


@pytest.mark.parametrize("line", ["--help", "-h", "help"])
def test_help_without_a_verb_names_the_verbs(line):
    with pytest.raises(HelpRequested) as caught:
        verb(line)
    assert all(f"  {name} " in str(caught.value) for name in VERBS)


# Whatever is typed.

_FLAGS = sorted({flag for name in (None, *VERBS) for flag in flags_of(name)} | {"--", "-", "-h", "--help"})
_VALUES = [
    "2",
    "head",
    "0-3",
    "jax",
    "keras(backend='torch'),torch",
    "A=1,B=2",
    "x>=1",
    "all",
    "nan",
    "1e999",
    "12h",
    "64MB",
    "3f9a2c1b",
    "night",
    "/dev/zero#x",
    "/etc",
    "'",
    '"',
]
_WORDS = st.one_of(st.sampled_from(_FLAGS), st.sampled_from(_VALUES), st.text(max_size=12))
_LINES = st.one_of(
    st.text(max_size=60),
    st.lists(_WORDS, max_size=6).map(" ".join),
    st.lists(_WORDS, max_size=6).map(shlex.join),
    st.builds(lambda flag, value: f"{flag}={value}", st.sampled_from(_FLAGS), st.text(max_size=12)),
    st.binary(max_size=40).map(lambda data: data.decode("latin-1")),
)

_opened: list[str] | None = None


def _note_opened(event, arguments):
    # A number is of a file that was opened, and noted, before; what other threads do is their own affair.
    here = _opened is not None and threading.current_thread() is threading.main_thread()
    if here and event == "open" and not isinstance(arguments[0], int):
        _opened.append(os.fsdecode(arguments[0]))


@contextlib.contextmanager
def watched():
    """What is opened inside, by whatever means; the interpreter tells, and does so for good once it is asked."""
    global _opened  # noqa: PLW0603 - the interpreter's hook cannot be taken away again
    if not watched.asked:
        sys.addaudithook(_note_opened)
        watched.asked = True
    _opened = found = []
    try:
        yield found
    finally:
        _opened = None


watched.asked = False


def answer(line: str, word: str | None = None) -> str:
    """What a line gives, as text: a request's spec, a refusal or help; anything else is raised."""
    try:
        asked = parse(line, cell=True) if word is None else parse(f"{word} {line}", cell=False)
    except (UsageError, HelpRequested) as error:
        return str(error)
    assert isinstance(asked, ParsedLine)
    return str(asked.spec())


@pytest.mark.parametrize("flag", ["--journal", "--pip", "--hosts", "--nodes", "--include", "--env"])
def test_two_dashes_are_no_value(flag):
    with pytest.raises(UsageError, match=rf"%%sky: {flag} takes .*, not '--'"):
        parse(f"{flag}=--", cell=True)


@pytest.mark.parametrize("line", ["--on={}", "--nodes {}", "{}", "--config {}", "--plugins '{}'", "--{}"])
def test_a_message_repeats_at_most_80_letters_of_what_was_typed(line):
    with pytest.raises(UsageError) as caught:
        parse(line.format("x" * 100_000), cell=True)
    assert "x" * 76 in str(caught.value)
    assert len(str(caught.value)) < 2000


@settings(max_examples=400)
@given(line=_LINES, word=st.sampled_from([None, "", *VERBS]))
@example(line="--config '\0'", word=None)
@example(line="--plugins jax(", word="up")
@example(line="--nodes " + "9" * 5000, word=None)
@example(line="--journal " + "9" * 5000 + "TB", word="up")
@example(line="--", word="attach")
@example(line="-- -x y", word="wait")
@example(line="--config ''", word="up")
@example(line="--config=0\\0", word=None)
@example(line="--journal=--", word=None)
@example(line="--nodes=--", word="up")
@example(line="--include=--", word="up")
@example(line="--plugins=0", word=None)
def test_whatever_is_typed_is_a_request_a_refusal_or_help_and_opens_no_file_but_the_named(line, word):
    answer("--plugins jax --pip x --nodes")  # what is imported late is imported now
    with watched() as opened:
        assert answer(line, word)
    # What other distributions register is looked up where a name is not ours.
    opened = [path for path in opened if path not in sys.path and not re.search(r"\.(dist|egg)-info(/|$)", path)]
    # Quotes and backslashes are the line's way to say a name.
    unquoted = str.maketrans("", "", "\\'\"")
    assert all(path and path.translate(unquoted) in line.translate(unquoted) for path in opened)


def test_the_watch_sees_what_is_opened(tmp_path):
    path = tmp_path / "pools.toml"
    path.write_text("nodes = 2")
    with watched() as opened:
        cell(f"--config {path}")
    assert set(opened) == {str(path)}


_TOML = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-10, 10),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
        st.sampled_from(["12h", "64MB", "jax(", "0-99999999", "\0", "\ud7ff"]),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
_KEYS = st.sampled_from([*(flag.lstrip("-") for flag in _FLAGS if len(flag) > 2), "nodez", "target", "verb", "pool"])


@settings(max_examples=200)
@given(
    table=st.dictionaries(_KEYS, _TOML, max_size=4),
    variables=st.dictionaries(st.text(max_size=4), _TOML, max_size=2),
    word=st.sampled_from([None, "up", "restart"]),
)
def test_whatever_a_file_holds_is_a_request_or_a_refusal(tmp_path_factory, table, variables, word):
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    lines += ["[env]", *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in variables.items())]
    path.write_text("\n".join(lines))
    assert answer(f"--config {path}", word)


@settings(max_examples=200)
@given(content=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), section=st.text(max_size=6))
def test_a_file_of_any_bytes_is_a_request_or_a_refusal(tmp_path_factory, content, section):
    path = tmp_path_factory.getbasetemp() / "bytes.toml"
    path.write_bytes(content)
    assert answer(shlex.join(["--config", f"{path}#{section}"]))


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("--nodes 2 --out x", "--nodes 2 --out x"),
        ("--env KEY=s3cret --nodes 2", "--env 'KEY=…' --nodes 2"),
        ("--env 'KEY=s3cret s3cret, B=s3cret'", "--env 'KEY=…,B=…'"),
        ('"--env=KEY=s3cret s3cret"', "'--env=KEY=…'"),
        ("--env s3cret", "--env '…'"),
        ("--pip 'a @ https://me:s3cret@h/a.whl'", "--pip 'a @ https://h/a.whl'"),
        ("--pip='a @ https://h/a.whl?sig=s3cret'", "'--pip=a @ https://h/a.whl?sig=…'"),
    ],
)
def test_of_a_cells_line_no_secret_is_kept(line: str, kept: str) -> None:
    assert without_values(line) == kept

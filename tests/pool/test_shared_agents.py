"""Local nodes whose agents share a process: what it saves, and what its end takes with it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sky_jupyter.errors import NodeLost
from sky_jupyter.node.protocol import agent_process, rpc
from sky_jupyter.node.protocol.host_config import HostConfig
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.control import control_client
from sky_jupyter.pool.control.control_client import Control
from sky_jupyter.pool.control.failure_detector import FailureDetector
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError
from tests.pool.pools import begin, local_pool, run, underway, wait_until
from tests.took import Took

RANK = "import sky_jupyter as sky\nrank = sky.instance_info().rank"


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "64")


def agents(pool: Pool) -> dict[int, int]:
    """The process of each node's agent."""
    return {node: facts["pid"] for node, facts in pool.status().items()}


def test_nodes_of_one_machine_need_four_processes_besides_their_ranks() -> None:
    with local_pool(nodes=4) as pool:
        host = psutil.Process(pool.hosts[0].command.identity[0])
        # Commands that a start runs are over.
        wait_until(lambda: len(host.children(recursive=True)) == 3 + 4)
        assert len(set(agents(pool).values())) == 1
        assert run(pool, f"{RANK}\nrank").values == [0, 1, 2, 3]


def test_the_end_of_a_shared_process_is_told_of_all_its_ranks_which_are_made_anew_together(
    took: Took, caplog: pytest.LogCaptureFixture
) -> None:
    with local_pool(nodes=3) as pool:
        run(pool, "name = 'lost'")
        before = agents(pool)[0]
        current = underway(pool, f"{RANK}\nprint('line of', rank, flush=True)\nimport time; time.sleep(600)")
        wait_until(lambda: all("line of" in "".join(one.stdout) for one in current.outcomes.values()))
        psutil.Process(before).kill()
        began = time.monotonic()
        with pytest.raises(CellError) as caught:
            pool.attend(current)
        told = time.monotonic() - began
        for node in range(3):
            why = f"node {node} is lost: its agent ended (killed by SIGKILL (9))"
            assert why in str(caught.value.errors[node])
            assert f"line of {node}" in caught.value.result.stdout(node)
        pool.settle()
        back = time.monotonic() - began
        told_of = "nodes 0-2: their agents ended (killed by SIGKILL (9)); new kernels are made for ranks 0-2"
        assert [text for text in caplog.messages if "new kernels" in text] == [f"pool default: {told_of}"]
        assert pool.take_restarted() == {0, 1, 2}
        assert run(pool, "globals().get('name')").values == [None] * 3
        after = set(agents(pool).values())
        assert len(after) == 1
        assert before not in after
        # The journals are those of the nodes, whatever process reads them.
        assert [f"line of {rank}" in pool.log(current.id).stdout(rank) for rank in range(3)] == [True] * 3
    took.row(
        "the process that several nodes share for their agents is killed",
        see="`node N is lost: its agent ended (killed by SIGKILL (9))` of each, and "
        "`nodes 0-2: their agents ended (killed by SIGKILL (9)); new kernels are made for ranks 0-2`",
        kept="the run's output on the nodes; no name of those ranks",
        told=told,
        back=back,
    )


@pytest.mark.slow
def test_a_plugin_of_all_ranks_is_entered_once_more_after_the_end_of_a_shared_process() -> None:
    with local_pool(nodes=3, plugins=(Plugin("together", collective=True),)) as pool:
        job = run(pool, "import sky_jupyter as sky; sky.instance_info().job_id").head
        psutil.Process(agents(pool)[0]).kill()
        wait_until(lambda: pool.supervisor.repairs.mending)
        pool.settle()
        again = run(pool, "import sky_jupyter as sky; sky.instance_info().job_id").values
        assert len(set(again)) == 1
        assert again[0] != job


def test_a_shared_process_that_stands_still_is_named_once_and_costs_nothing(took: Took) -> None:
    with local_pool() as pool:
        notices: list[str] = []
        current = underway(
            pool,
            "import time\nfor step in range(80):\n    print(step, flush=True)\n    time.sleep(0.1)",
            listener=lambda event: notices.append(event.text) if isinstance(event, NoticeEvent) else None,
        )
        process = psutil.Process(agents(pool)[0])
        process.suspend()
        stopped = time.monotonic()
        try:
            wait_until(lambda: any("nodes 0-1 do not answer" in text for text in notices))
            told = time.monotonic() - stopped
            wait_until(lambda: any("the agents of nodes 0-1 are suspended" in text for text in notices))
        finally:
            process.resume()
        result = pool.attend(current)
        assert [text for text in notices if "answer" in text] == [
            "nodes 0-1 do not answer; trying again, and what runs there continues",
            "nodes 0-1 answer again",
        ]
        assert [result.stdout(rank).split() for rank in (0, 1)] == [["at", "it", *map(str, range(80))]] * 2
        assert pool.take_restarted() == set()
    took.row(
        "the process that several nodes share for their agents stands still (SIGSTOP) and goes on",
        see="`nodes 0-1 do not answer; trying again`, and which process is suspended; then that they answer",
        kept="everything",
        told=told,
    )


def test_more_ranks_than_a_process_has_agents_for_are_those_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "2")
    with local_pool(nodes=3) as pool:
        before = agents(pool)
        assert before[0] == before[1] != before[2]
        run(pool, "name = 'kept'")
        psutil.Process(before[0]).kill()
        wait_until(lambda: pool.supervisor.repairs.mending)
        pool.settle()
        assert pool.take_restarted() == {0, 1}
        assert run(pool, "globals().get('name')").values == [None, None, "kept"]
        assert agents(pool)[2] == before[2]


class Requests:
    """What is asked of agents, by their addresses: stands before the connections of a pool's manager."""

    def __init__(self, pool: Pool) -> None:
        assert pool.control is not None
        assert pool.control.client is not None
        self.asked: list[str] = []
        self._rpc = pool.control.client.rpc
        pool.control.client.rpc = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rpc, name)

    def __call__(self, address: str) -> Any:
        requests, agent = self, self._rpc(address)

        class Agent:
            def __getattr__(self, name: str) -> Callable[..., Any]:
                requests.asked.append(name)
                return getattr(agent, name)

        return Agent()


def test_a_cell_is_begun_by_one_request_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "3")
    with local_pool(nodes=4) as pool:
        requests = Requests(pool)
        assert run(pool, f"{RANK}\nprint('line of', rank)\nrank").values == [0, 1, 2, 3]
        assert [name for name in requests.asked if "start" in name] == [rpc.START_RUNS.op] * 2
        result = run(pool, f"{RANK}\nprint('line of', rank)", ranks=[1, 3])
        assert [result.stdout(rank) for rank in (1, 3)] == ["line of 1\n", "line of 3\n"]
        assert [name for name in requests.asked if "start" in name][2:] == [rpc.START_RUNS.op] * 2


@pytest.mark.parametrize("together", ["3", "1"])
def test_a_node_whose_agent_is_another_one_begins_nothing_and_is_lost_alone(
    together: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", together)
    with local_pool(nodes=3) as pool:
        assert pool.control is not None
        _replace_agent(pool.control, 1)
        with pytest.raises(CellError) as caught:
            run(pool, f"{RANK}\nopen({str(tmp_path)!r} + f'/{{rank}}', 'w').close(); rank")
        assert set(caught.value.errors) == {1}
        assert "node 1 is lost: its agent ended" in str(caught.value.errors[1])
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]
        pool.settle()
        assert run(pool, f"{RANK}\nrank").values == [0, 1, 2]


def test_another_agent_of_a_node_does_not_begin_what_the_others_are_asked_for_again(tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"{RANK}\nopen({str(tmp_path)!r} + f'/{{rank}}', 'w').close()\n"
    code += f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)"
    with local_pool(nodes=3) as pool:
        assert pool.control is not None
        _replace_agent(pool.control, 1)
        control, asked = pool.control, pool.control.ask
        answered: list[dict[int, Any]] = []

        async def ask(call: rpc.AgentCall, *args: Any, **more: Any) -> dict[int, Any]:
            answer = await asked(call, *args, **more)
            if call is rpc.START_RUN:
                answered.append(answer)
            return answer

        control.ask = ask  # type: ignore[method-assign]
        current = begin(pool, code)
        # The other one has been met by then.
        wait_until(lambda: answered and current.left == [0, 2])
        go.touch()
        with pytest.raises(CellError) as caught:
            pool.attend(current)
        assert set(caught.value.errors) == {1}
        assert sorted(answered[0]) == [0, 2]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2", "go"]
        pool.settle()
        assert run(pool, f"{RANK}\nrank").values == [0, 1, 2]


def test_agents_of_many_processes_pass_a_cell_on_and_one_of_another_incarnation_is_lost_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "1")
    monkeypatch.setattr(control_client, "_MANY", 4)
    with local_pool(nodes=5) as pool:
        assert pool.control is not None
        control, send = pool.control, pool.control._send
        asked: list[dict[str, list[str]]] = []

        async def spy(places: list[str], call: rpc.AgentCall, arguments: dict[str, Any]) -> list[Any]:
            if "branches" in arguments:
                assert list(arguments["branches"]) == places
                asked.append(arguments["branches"])
            return await send(places, call, arguments)

        control._send = spy  # type: ignore[method-assign]
        assert run(pool, f"{RANK}\nprint('line of', rank)\nrank").values == [0, 1, 2, 3, 4]
        at = control.addresses
        assert asked == [{at[0]: [at[1], at[2]], at[3]: [at[4]]}]
        _replace_agent(control, 2)
        with pytest.raises(CellError) as caught:
            run(pool, f"{RANK}\nopen({str(tmp_path)!r} + f'/{{rank}}', 'w').close(); rank")
        assert set(caught.value.errors) == {2}
        assert "node 2 is lost: its agent ended" in str(caught.value.errors[2])
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "3", "4"]
        pool.settle()
        assert run(pool, f"{RANK}\nrank").values == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_agents_of_many_processes_ping_others_and_one_that_stands_still_hides_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "1")
    monkeypatch.setattr(control_client, "_MANY", 4)
    with local_pool(nodes=5) as pool:
        assert pool.control is not None
        control, processes = pool.control, agents(pool)
        ports = {node: int(address.rpartition(":")[2]) for node, address in control.addresses.items()}
        pinging = psutil.Process(processes[0])
        wait_until(lambda: {ports[1], ports[2]} <= {one.raddr.port for one in pinging.net_connections() if one.raddr})
        standing = psutil.Process(processes[3])
        standing.suspend()
        try:
            wait_until(lambda: control.silent == {3})
            heard = control.heard
            wait_until(lambda: control.heard > heard + 1)
            assert control.silent == {3}
        finally:
            standing.resume()
        wait_until(lambda: not control.silent)
        assert run(pool, f"{RANK}\nrank").values == [0, 1, 2, 3, 4]
        # That another manager has the pool is heard the same way.
        taken: list[bool] = []
        pool.supervisor.on_taken = lambda: taken.append(True)
        control._caller = {"manager": control.generation - 1}
        wait_until(lambda: taken)


def test_an_agent_that_another_does_not_reach_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "_MANY", 3)
    nodes = {"a": 0, "b": 1, "c": 2, "d": 3}

    class Scheduler:
        """Of agents that reach each other, but for `b`."""

        def __init__(self) -> None:
            self.asked: list[dict[str, list[str]]] = []

        async def broadcast(self, msg: dict[str, Any], workers: list[str]) -> dict[str, Any]:
            self.asked.append(msg["branches"])
            reached = {worker: [worker, *(set(msg["branches"][worker]) - {"b"})] for worker in workers}
            return {worker: {nodes[one]: one for one in answer} for worker, answer in reached.items()}

    class Client:
        scheduler = Scheduler()

    async def ask_twice() -> None:
        control = Control(object(), direct=False, generation=1)  # type: ignore[arg-type]
        control.client, control.addresses = Client(), {node: address for address, node in nodes.items()}
        met = {node: agent_process.new_incarnations([node])[node] for node in nodes.values()}
        control.detector.begin(met, {})
        control.up.set()
        for _ in range(2):
            answers = await control.ask(rpc.START_RUN, [0, 1, 2, 3], run="r", ranks=[0, 1, 2, 3], content={})
            assert answers == {node: address for address, node in nodes.items()}
        # Nor is anything passed on by an agent whose answer is late.
        control.detector.doubted.add(0)
        await control.ask(rpc.START_RUN, [0, 1, 2, 3], run="r", ranks=[0, 1, 2, 3], content={})

    asyncio.run(ask_twice())
    alone: dict[str, list[str]] = {"a": ["c"], "d": [], "b": []}
    assert Client.scheduler.asked == [{"a": ["b", "c"], "d": []}, alone, alone, {"c": ["d"], "a": [], "b": []}]


def _replace_agent(control: Control, node: int) -> None:
    """Have the next run find another agent, as if the node's had been dropped and come back, and were not met yet."""
    asked, replaced = control.ask, []

    async def ask(call: rpc.AgentCall, *args: Any, **more: Any) -> dict[int, Any]:
        if call is rpc.START_RUN and not replaced:
            # Only now: a look at the agents would find it before the run begins.
            replaced.append(node)
            control.incarnations[node] = agent_process.renewed(control.incarnations[node])
        return await asked(call, *args, **more)

    control.ask = ask  # type: ignore[method-assign]


def test_agents_of_an_earlier_version_are_asked_one_by_one() -> None:
    class Scheduler:
        """Of agents that know no joint call, and answer None to what they do not know."""

        def __init__(self) -> None:
            self.asked: list[tuple[str, list[str]]] = []

        async def broadcast(self, msg: dict[str, Any], workers: list[str]) -> dict[str, Any]:
            self.asked.append((msg["op"], workers))
            return {worker: None if msg["op"] == rpc.START_RUNS.op else worker for worker in workers}

    class Client:
        scheduler = Scheduler()

    async def ask_twice() -> None:
        control = Control(object(), direct=False, generation=1)  # type: ignore[arg-type]
        control.client, control.addresses = Client(), {0: "a", 1: "b", 2: "c"}
        control.detector.begin(agent_process.new_incarnations([0, 1, 2]), {})
        control.up.set()
        for _ in range(2):
            answers = await control.ask(rpc.START_RUN, [0, 2], run="r", ranks=[0, 2], content={})
            assert answers == {0: "a", 2: "c"}
        # A node that is not there is told of, as ever.
        control.lost.add(3)
        with pytest.raises(NodeLost, match="node 3 is lost"):
            await control.ask(rpc.START_RUN, [0, 3], run="r", ranks=[0, 3], content={})

    asyncio.run(ask_twice())
    one_by_one = (rpc.START_RUN.op, ["a", "c"])
    assert Client.scheduler.asked == [(rpc.START_RUNS.op, ["a"]), one_by_one, one_by_one]


@pytest.mark.slow
def test_a_resized_pool_has_one_process_of_agents_still() -> None:
    with local_pool() as pool:
        pool.resize(4)
        assert len(set(agents(pool).values())) == 1
        pool.resize(1)
        assert run(pool, "40 + 2").values == [42]


@pytest.mark.slow
def test_a_shared_process_ends_all_its_ranks_in_order(tmp_path: Any) -> None:
    with local_pool(nodes=3) as pool:
        run(pool, f"{RANK}\nimport atexit; atexit.register(open({str(tmp_path)!r} + f'/{{rank}}', 'w').close)")
        psutil.Process(agents(pool)[0]).send_signal(signal.SIGTERM)
        wait_until(lambda: pool.supervisor.repairs.mending)
        pool.settle()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def config_of(nodes: list[int], most: int) -> HostConfig:
    return HostConfig("pool", nodes, len(nodes), 1, [], [], "", "", nodes_per_agent=most)


def test_nodes_are_divided_among_processes_in_order() -> None:
    assert config_of([0, 1, 2, 5, 6], 2).agents == [[0, 1], [2, 5], [6]]
    assert config_of([0, 1, 2], 64).agents == [[0, 1, 2]]
    assert config_of([3], 1).agents == [[3]]


def test_a_process_of_agents_is_named_by_its_nodes_and_logs_in_the_first_ones_folder() -> None:
    assert agent_process.name_of([4]) == "agent 4"
    assert agent_process.name_of([0, 1, 2, 3]) == "agents 0-3"
    assert agent_process.log_of("agents 12-15") == "n12/agent.log"
    assert agent_process.log_of("agent 4") == "n4/agent.log"
    # What has no such log must not lead out of the folder.
    assert agent_process.log_of("../../etc/passwd") == "n/agent.log"


class Watcher:
    def __init__(self) -> None:
        self.told: list[tuple[list[int] | None, bool]] = []

    def on_lost(self, node: int, why: str, *, revived: bool) -> None: ...

    def on_back(self, node: int, *, kept: bool) -> None: ...

    def on_doubt(self, node: int | None) -> None: ...

    def on_silent(self, nodes: Any, *, silent: bool) -> None:
        self.told.append((None if nodes is None else list(nodes), silent))


def test_nodes_that_share_a_process_go_silent_and_return_together() -> None:
    watcher = Watcher()
    detector = FailureDetector(watcher, lambda: None)
    first, second = agent_process.new_incarnations([0, 1, 2]), agent_process.new_incarnations([3, 4])
    detector.begin({**first, **second}, {})
    assert detector.by_process(range(6)) == [[0, 1, 2], [3, 4], [5]]
    long_ago = time.monotonic() - 3600
    detector.off.add(1)
    detector.note(dict.fromkeys(range(4), False), long_ago)
    assert watcher.told == [([0, 2], True), ([3], True)]
    assert detector.silent == {0, 1, 2, 3}
    detector.note(dict.fromkeys(range(5), True), time.monotonic())
    assert watcher.told[2:] == [([0, 1, 2], False), ([3], False)]
    assert detector.silent == set()

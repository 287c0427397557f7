"""What functions on all nodes share: a dict, a set, a counter, a queue, a lock and a barrier.

Run it: python examples/shared_state.py
"""

import sky_jupyter as sky


@sky.function
def measure(names: list[str]) -> int:
    """Each name is measured once, whichever nodes are given it."""
    lengths, progress, seen = sky.dict("lengths"), sky.counter("measured"), sky.set("seen")
    for name in names:
        with sky.lock("names"):
            fresh = name not in seen
            seen.add(name)
        if fresh:
            lengths[name] = len(name)
            progress.increment()
    return len(names)


@sky.function
def read(names: list[str]) -> tuple[int, int]:
    lengths = sky.dict("lengths")
    return sky.counter("measured").value, sum(lengths.get(name, 0) for name in names)


@sky.function
def best_of(losses: list[float]) -> float:
    """The ranks agree on the lowest loss: each reads what all have written."""
    info, board = sky.instance_info(), sky.dict("board")
    meeting = sky.barrier("written", n=info.total_nodes)
    board[f"loss of {info.node}"] = min(sky.shard(losses))
    meeting.wait()
    return min(board[f"loss of {node}"] for node in range(info.total_nodes))


@sky.function
def work_off(jobs: list[int]) -> list[int]:
    """The head fills the queue; whoever is free takes the next job."""
    queue, done = sky.queue("jobs"), []
    if sky.instance_info().is_head:
        for job in jobs:
            queue.put(job)
    # None: nothing came for a second.
    while (job := queue.get(timeout=1)) is not None:
        done.append(job)
    return done


if __name__ == "__main__":
    names = ["ada", "grace", "edsger", "ada", "barbara"]
    with sky.Compute(provider=sky.Local(), nodes=2) as pool:
        print("given:", sum(measure(names) @ pool))
        print("measured, letters:", read(sorted(set(names))) >> pool)
        print("lowest:", best_of([0.5, 0.25, 0.75, 0.125]) @ pool)
        done = work_off(list(range(20))) @ pool
        print("jobs done once each:", sorted(job for each in done for job in each) == list(range(20)))

"""What type checkers make of the library: never run, but read by mypy and pyright in test_typing.py.

Where `assert_type` stands, a checker that sees another type says so. A line that ends in `ignore` is a
mistake that both must find: one that they do not find is told, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future as StandardFuture

from typing_extensions import assert_type

import sky_jupyter as sky


@sky.function
def add(left: int, right: int = 1) -> int:
    return left + right


@sky.function(timeout=5)
def name(number: int) -> str:
    return str(number)


@sky.function
@sky.stdout(only="head")
def below() -> float:
    return 0.5


@sky.silent
@sky.function
def above(flag: bool) -> bytes:
    return bytes(flag)


@sky.function
def count(limit: int) -> Iterator[int]:
    yield from range(limit)


@sky.function
def mean(samples: Iterator[float]) -> float:
    return sum(samples)


def operators(pool: sky.Compute) -> None:
    assert_type(add(1) >> pool, int)
    assert_type(add(1) @ pool, list[int])
    assert_type(add(1) > pool, sky.Future[int])
    standard: StandardFuture[int] = add(1) > pool
    assert_type(standard.result(), int)
    assert_type((add(1) > pool).result(), int)
    assert_type(name(number=1) >> pool, str)
    assert_type(below() >> pool, float)
    assert_type(above(True) >> pool, bytes)


def the_pool_of_the_block() -> None:
    assert_type(add(1) >> sky, int)
    assert_type(add(1) @ sky, list[int])
    assert_type(add(1) > sky, sky.Future[int])
    assert_type(add(1) >> sky.sky, int)


def chosen(pool: sky.Compute) -> None:
    assert_type(add(1).with_timeout(3) >> pool, int)
    assert_type(add(1).with_retries(2) @ pool, list[int])
    assert_type(name(1).on(1) >> pool, str)
    assert_type(name(1).with_timeout(3).on(1) > pool, sky.Future[str])


def groups(pool: sky.Compute) -> None:
    assert_type((add(1) & name(2)) >> pool, tuple[int, str])
    assert_type((add(1) & name(2) & below()) >> pool, tuple[int, str, float])
    number, text, _, _ = (add(1) & name(2) & below() & add(3)) >> pool
    assert_type(number, int)
    assert_type(text, str)
    assert_type((name(1) & (add(1) & below())) >> pool, tuple[str, int, float])
    nine = add(1) & name(2) & below() & add(3) & name(4) & below() & add(5) & name(6) & below()
    assert_type((nine >> pool)[7:], tuple[str, float])
    assert_type(sky.gather(add(1)) >> pool, tuple[int])
    assert_type(sky.gather(add(1), name(2)) >> pool, tuple[int, str])
    assert_type(sky.gather(add(1), name(2), stream=False, ordered=False) >> pool, tuple[int, str])
    assert_type(
        sky.gather(add(1), name(2), below(), add(3), name(4), below(), add(5), name(6)) >> pool,
        tuple[int, str, float, int, str, float, int, str],
    )
    assert_type(sky.gather(*(name(number) for number in range(9))) >> pool, tuple[str, ...])
    assert_type(sky.gather(add(1), stream=True) >> pool, Iterator[int])
    assert_type(sky.gather(add(1), add(2), stream=True, ordered=False) >> pool, Iterator[int])
    assert_type(pool.map(name, [1, 2]), list[str])
    assert_type(pool.map(add, [1, 2]), list[int])
    assert_type(pool.map(len, ["a", "b"]), list[int])


def streams(pool: sky.Compute) -> None:
    assert_type(count(3) >> pool, Iterator[int])
    assert_type(next(count(3) >> pool), int)
    assert_type(mean(iter([0.5])) >> pool, float)


def here() -> None:
    assert_type(add.local(1), int)
    assert_type(name.local(1), str)


def blocks() -> None:
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=[sky.plugins.jax()]) as pool:
        assert_type(pool, sky.Compute)
    assert_type(sky.Compute(name="train").start(), sky.Compute)


def devices() -> None:
    assert_type(sky.accelerators.A100(count=8), sky.Accelerator)
    sky.accelerators.A1000()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


async def async_blocks() -> None:
    async with sky.Compute() as pool:
        assert_type(pool, sky.Compute)


def parts(rows: list[str], pair: tuple[int, ...]) -> None:
    assert_type(sky.shard(rows), list[str])
    assert_type(sky.shard(rows, pair), tuple[list[str], tuple[int, ...]])
    assert_type(sky.shard(rows, rows, rows, shuffle=True, seed=3), tuple[list[str], list[str], list[str]])
    assert_type(sky.instance_info(), sky.InstanceInfo)
    assert_type(sky.instance_info().rank, int)
    assert_type(sky.is_head(), bool)
    assert_type(sky.interruption().wait(1.0), bool)


def mistakes(pool: sky.Compute) -> None:
    add("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    add()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    add(1, other=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    add.local("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    wrong: str = add(1) >> pool  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(wrong)
    add(1) >> 3  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    add(1) @ "pool"  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    add(1) & 3  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    sky.gather(add(1), 3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    sky.gather(add)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    pool.map(name, ["one"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    sky.function(3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    sky.nothing()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

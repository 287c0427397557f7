"""What the programs of docs/calls.md do, in plain Python: the same for ours and for every peer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

Policy = list[float]
Question = tuple[int, int]

QUESTIONS: list[Question] = [(a, b) for a in range(40) for b in range(25)]
MODEL = 500
RIGHT = 861
RATES = [rate / 100 for rate in range(1, 100)]
# Gradients that each worker sends to the server.
STEPS = 30


def rollout(policy: Policy, seed: int) -> float:
    """Return the reward of one episode: a cart that is to stand still at 1.0."""
    noise = random.Random(seed)
    position = speed = reward = 0.0
    for _ in range(200):
        speed += policy[0] * (1.0 - position) - policy[1] * speed + noise.gauss(0, 0.01)
        position += 0.1 * speed
        reward -= (1.0 - position) ** 2
    return reward


def search(generations: int, rewards: Callable[[list[Policy], int], Iterable[float]]) -> None:
    """Improve a policy; ``rewards`` returns those of 16 policies for a seed."""
    draw = random.Random(0)
    best, reward = [0.1, 0.1], float("-inf")
    for step in range(generations):
        policies = [best, *([value + draw.gauss(0, 0.1) for value in best] for _ in range(15))]
        reward, best = max(zip(rewards(policies, step), policies, strict=True))
    assert generations < 20 or reward > -15


def make_model(size: int) -> dict[Question, int]:
    """Return what answers the questions."""
    return {(a, b): (a * b) % size for a, b in QUESTIONS}


def right_answers(model: dict[Question, int], questions: Sequence[Question]) -> int:
    """Return how many of the questions the model answers."""
    return sum(model[a, b] == a * b for a, b in questions)


def loss_after_training(rate: float) -> float:
    """Return the loss of gradient descent on (x - 3) ** 2 after 50 steps."""
    x = 0.0
    for _ in range(50):
        x -= rate * 2 * (x - 3)
    return (x - 3) ** 2


def is_good(loss: float) -> bool:
    """Tell whether a loss ends the sweep."""
    return loss < 1e-9


def gradient(weight: float, noise: random.Random) -> float:
    """Return the gradient of one drawn point."""
    x = noise.uniform(-1, 1)
    return 2 * x * (weight * x - 3.0 * x)


def is_learned(weight: float) -> bool:
    """Tell whether the server has learned the slope of the points, which is 3."""
    return round(weight) == 3

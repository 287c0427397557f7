"""A PyTorch model goes to a node, is trained there, and comes back with what it learnt.

Run it: python examples/torch_roundtrip.py
"""

import torch
from torch import nn

import sky_jupyter as sky


class Rings(nn.Module):
    """Tells two rings of points apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.layers(points)


def make_rings(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    rings = torch.arange(count) % 2
    angles = torch.rand(count) * 2 * torch.pi
    radii = 1.0 + rings + 0.1 * torch.randn(count)
    return torch.stack([radii * angles.cos(), radii * angles.sin()], dim=1), rings


def accuracy(model: nn.Module, points: torch.Tensor, rings: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(points).argmax(dim=1) == rings).float().mean().item()


@sky.function
def train(model: nn.Module, points: torch.Tensor, rings: torch.Tensor, steps: int) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), rings).backward()
        optimizer.step()
    return model


if __name__ == "__main__":
    torch.manual_seed(0)
    seen, unseen, model = make_rings(400), make_rings(200), Rings()
    print(f"before: {accuracy(model, *unseen):.2f}")
    with sky.Compute(provider=sky.Local()) as pool:
        trained = train(model, *seen, steps=200) >> pool
    print(f"after: {accuracy(trained, *unseen):.2f}")
    print(f"here unchanged: {accuracy(model, *unseen):.2f}")

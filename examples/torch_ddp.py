"""PyTorch's DistributedDataParallel on two nodes, on their shards of scikit-learn's digits.

Run it: python examples/torch_ddp.py
"""

import sky_jupyter as sky


@sky.function
@sky.stdout(only="head")
def train(epochs):
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch.nn.parallel import DistributedDataParallel

    # The torch plugin has called init_process_group.
    print(f"{dist.get_world_size()} ranks, {dist.get_backend()}")
    images, labels = load_digits(return_X_y=True)
    x, y = sky.shard(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels), drop_last=True)

    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(epochs):
        for x_batch, y_batch in zip(x.split(32), y.split(32), strict=True):
            loss = torch.nn.functional.cross_entropy(model(x_batch), y_batch)
            optimizer.zero_grad()
            loss.backward()  # DDP averages the gradients over the ranks here
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

    right = model(x).argmax(dim=1) == y
    weights = sum(parameter.abs().sum().item() for parameter in model.parameters())
    return {"rank": dist.get_rank(), "accuracy": right.float().mean().item(), "weights": weights}


if __name__ == "__main__":
    with sky.Compute(provider=sky.Local(), nodes=2, plugins=[sky.plugins.torch()]) as pool:
        results = train(epochs=8) @ pool

    for result in results:
        print(f"rank {result['rank']}: accuracy {result['accuracy']:.3f}, weights {result['weights']:.6f}")

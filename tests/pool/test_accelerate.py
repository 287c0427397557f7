"""Hugging Face's Accelerate on a pool's process group: `Accelerator()` of all ranks, and `Trainer`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sky_jupyter as sky
from sky_jupyter.plugins import parse_plugins
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError
from tests.plugins.world import needs
from tests.pool.pools import local_pool, run

# One step of training, of which rank 0 and rank 1 have different data; the same in one process with all of it.
TRAIN = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
torch.manual_seed(0)
x, y = torch.randn(8, 3), torch.randn(8, 1)

def step(model, optimizer, x, y, backward):
    for _ in range(3):
        optimizer.zero_grad()
        backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()

torch.manual_seed(1 + accelerator.process_index)
model = torch.nn.Linear(3, 1)
torch.manual_seed(1)
alone = torch.nn.Linear(3, 1)
shared, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
mine = slice(accelerator.process_index, None, accelerator.num_processes)
step(shared, optimizer, x[mine], y[mine], accelerator.backward)
step(alone, torch.optim.SGD(alone.parameters(), lr=0.1), x, y, lambda loss: loss.backward())
weights = accelerator.unwrap_model(shared).weight
gathered = accelerator.gather(torch.tensor([accelerator.process_index])).tolist()
(accelerator.num_processes, accelerator.process_index, gathered, accelerator.device.type,
 torch.allclose(weights, alone.weight, atol=1e-6), weights.tolist())
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    needs("torch")
    with local_pool(plugins=parse_plugins("torch,accelerate")) as made:
        yield made


@pytest.mark.slow
def test_training_is_the_same_on_all_ranks_as_in_one_process(pool: Pool) -> None:
    first, second = run(pool, TRAIN).values
    assert first[:5] == (2, 0, [0, 1], "cpu", True)
    assert second[:5] == (2, 1, [0, 1], "cpu", True)
    assert first[5] == second[5]


def test_notebook_launcher_calls_its_function_on_the_ranks_that_are_there(pool: Pool) -> None:
    code = """
from accelerate import Accelerator, notebook_launcher
seen = []
def train(extra):
    made = Accelerator()
    seen.append((made.num_processes, made.process_index, made.mixed_precision, extra))
notebook_launcher(train, ("x",), num_processes=2)
notebook_launcher(train, args=("y",))
seen
"""
    assert run(pool, code).values == [[(2, rank, "no", extra) for extra in "xy"] for rank in range(2)]
    with pytest.raises(CellError, match="ranks are launched already, and here are 2 of them"):
        run(pool, "notebook_launcher(train, ('x',), num_processes=4)")


def test_an_example_that_ends_its_training_leaves_a_pool_that_works(pool: Pool) -> None:
    # As each of Accelerate's own examples ends.
    run(pool, "import torch\nfrom accelerate import Accelerator\nkept = 1\nAccelerator().end_training()")
    look = "accelerator = Accelerator()\n(accelerator.gather(torch.ones(1)).tolist(), accelerator.device.type, kept)"
    assert run(pool, look).values == [([1.0, 1.0], "cpu", 1)] * 2


@pytest.mark.long
def test_it_makes_the_group_itself_where_there_is_no_torch_and_heeds_its_settings() -> None:
    needs("torch")
    config = {"gradient_accumulation_steps": 4, "mixed_precision": "bf16", "backend": "gloo"}
    look = "from accelerate import Accelerator\na = Accelerator()\n"
    look += (
        "a.num_processes, a.process_index, a.mixed_precision, a.gradient_accumulation_steps, a.distributed_type.name"
    )
    with local_pool(plugins=(sky.plugins.accelerate(config),)) as made:
        assert run(made, look).values == [
            (2, 0, "bf16", 4, "MULTI_CPU"),
            (2, 1, "bf16", 4, "MULTI_CPU"),
        ]
        # A rank that waits for one that has failed is freed, and what comes next has a group again.
        with pytest.raises(sky.CellError):
            run(made, "import torch\nkept = 1\nif a.process_index: 1 / 0\na.gather(torch.ones(1))", grace=0.5)
        made.settle()
        assert run(made, f"{look}, a.gather(torch.ones(1)).tolist(), kept").values == [
            (2, 0, "bf16", 4, "MULTI_CPU", [1.0, 1.0], 1),
            (2, 1, "bf16", 4, "MULTI_CPU", [1.0, 1.0], 1),
        ]
        made.restart()
        assert [value[0] for value in run(made, look).values] == [2, 2]


TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
tokens = torch.randint(0, 50, (16, 8))
data = [{"input_ids": row, "labels": row} for row in tokens]
torch.manual_seed(7 + RANK)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=8))
arguments = TrainingArguments(
    output_dir=OUT, per_device_train_batch_size=2, max_steps=3, report_to="none", use_cpu=True,
    save_strategy="no", average_tokens_across_devices=False, disable_tqdm=True)
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
trainer.args.world_size, [round(float(p.sum()), 4) for p in trainer.model.parameters()][:3]
"""


@pytest.mark.long
def test_trainer_trains_one_model_on_all_ranks(tmp_path: object) -> None:
    needs("torch")
    plugins = parse_plugins("torch,accelerate,huggingface(token=False)")
    head = f"import sky_jupyter\nRANK, OUT = sky_jupyter.instance_info().rank, {str(tmp_path)!r}\n"
    with local_pool(plugins=plugins) as made:
        first, second = run(made, head + TRAINER).values
        assert first == second
        assert first[0] == 2


def test_settings_become_what_accelerates_own_launcher_sets() -> None:
    from sky_jupyter.plugins.accelerate import variables

    settings = {
        "mixed_precision": "fp16",
        "fsdp": {
            "sharding_strategy": "FULL_SHARD",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": ["GPT2Block", "Other"],
            "sync_module_states": True,
        },
    }
    assert variables(settings) == {
        "ACCELERATE_MIXED_PRECISION": "fp16",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "GPT2Block,Other",
        "FSDP_SYNC_MODULE_STATES": "true",
    }
    assert variables({"deepspeed": {"zero_stage": 3, "offload_optimizer_device": "cpu", "gradient_clipping": 1.0}}) == {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
        "ACCELERATE_GRADIENT_CLIPPING": "1.0",
    }


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"mixed_precison": "bf16"}, "no setting 'mixed_precison'.*did you mean 'mixed_precision'"),
        ({"num_processes": 2}, "Ranks and addresses are the pool's own"),
        ({"mixed_precision": "f16"}, "one of no, fp16, bf16, fp8"),
        ({"backend": "mpi"}, "the backends are gloo, nccl"),
        ({"gradient_accumulation_steps": 0}, "must be a whole number above 0"),
        ({"fsdp": "full"}, "fsdp must be a mapping"),
        ({"fsdp": {}, "deepspeed": {}}, "contradict each other"),
    ],
)
def test_settings_that_cannot_be_are_refused(config: dict[str, object], told: str) -> None:
    with pytest.raises(sky.SpecError, match=told):
        sky.plugins.accelerate(config)


def test_torch_comes_before_it_where_it_is_there() -> None:
    with pytest.raises(sky.SpecError, match="--plugins torch,accelerate"):
        parse_plugins("accelerate,torch")
    assert [plugin.name for plugin in parse_plugins("accelerate")] == ["accelerate"]
    assert sky.Compute(plugins=["accelerate"]).spec.full_image.pip == ("accelerate", "numpy", "torch")
    assert hash(sky.plugins.accelerate({"fsdp": {"a": 1}})) == hash(sky.plugins.accelerate({"fsdp": {"a": 1}}))

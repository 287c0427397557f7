"""Options that ``torch.distributed.run`` and ``accelerate launch`` list."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LauncherOption:
    """Option of a launcher, and its effect on a pool.

    Parameters
    ----------
    flags : tuple of str
        Its spellings, the usual one first.
    dest : str
        What it sets; ``"pool"`` if the pool does that by itself, ``"accelerate"`` if Accelerate reads it on the nodes.
    metavar : str
        Placeholder for its value; empty if it takes none.
    help : str
        Its effect on a pool.
    refused : str
        Why it cannot be used on a pool, and what to do instead.
    """

    flags: tuple[str, ...]
    dest: str = ""
    metavar: str = ""
    help: str = ""
    refused: str = ""


def _both(flag: str) -> tuple[str, ...]:
    """Return a flag, and its spelling with underscores."""
    other = f"--{flag[2:].replace('-', '_')}"
    return (flag,) if other == flag else (flag, other)


_MODULE = LauncherOption(("-m", "--module"), "module", help="the script is a module: `-m package.module`")
_NO_PYTHON = LauncherOption(_both("--no-python"), "no_python", help="the script is a program of the nodes")
_LOGS = "each rank's output has a tab of its own, and `%sky logs --to FOLDER` writes it to files"
_MEETING = "ignored: the pool does that itself"

RUN = (_MODULE, _NO_PYTHON)
TORCHRUN = (
    LauncherOption(_both("--nnodes"), "nodes", "N or MIN:MAX", "so many of the pool's nodes, the first ones (all)"),
    LauncherOption(
        _both("--nproc-per-node"), "per_node", "N", "processes on each node: a number, gpu or auto (one a rank)"
    ),
    LauncherOption(_both("--standalone"), "standalone", help="the first node alone"),
    LauncherOption(
        _both("--max-restarts"), "restarts", "N", "start all processes again, up to so often, when one fails (0)"
    ),
    _MODULE,
    _NO_PYTHON,
    LauncherOption(_both("--rdzv-id"), "id", "ID", "the run's TORCHELASTIC_RUN_ID (a new one)"),
    LauncherOption(_both("--role"), "role", "NAME", "the processes' ROLE_NAME (default)"),
    *(
        LauncherOption(_both(flag), "pool", "VALUE", _MEETING)
        for flag in (
            *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--master-addr", "--master-port", "--local-addr"),
            *("--node-rank", "--monitor-interval", "--start-method", "--signals-to-handle", "--shutdown-timeout"),
        )
    ),
    LauncherOption(_both("--log-dir"), metavar="FOLDER", refused=_LOGS),
    LauncherOption(_both("--logs-specs"), metavar="NAME", refused=_LOGS),
    LauncherOption(("--redirects", "-r"), metavar="N", refused=_LOGS),
    LauncherOption(("--tee", "-t"), metavar="N", refused=_LOGS),
    LauncherOption(_both("--local-ranks-filter"), metavar="RANKS", refused="`--only 0,2` shows these ranks alone"),
    LauncherOption(_both("--duplicate-stdout-filters"), metavar="TEXT", refused=_LOGS),
    LauncherOption(_both("--duplicate-stderr-filters"), metavar="TEXT", refused=_LOGS),
    LauncherOption(_both("--run-path"), refused="each process is a fresh Python that runs the file; leave it out"),
    LauncherOption(
        _both("--event-log-handler"), metavar="NAME", refused="`%sky runs` and the journals record what happens"
    ),
    LauncherOption(
        _both("--numa-binding"), metavar="MODE", refused="bind in the script, or with --no-python numactl ..."
    ),
    LauncherOption(
        _both("--virtual-local-rank"),
        refused="LOCAL_RANK counts a node's devices; choose cuda:LOCAL_RANK in the script",
    ),
)


def _hyphens(name: str) -> tuple[str, ...]:
    """Return an option of Accelerate in its two spellings."""
    flag = f"--{name}"
    return (flag,) if "_" not in name else (flag, flag.replace("_", "-"))


# Options that Accelerate itself reads on the nodes, and turns into its variables.
_ACCELERATE_VALUES = """
mixed_precision num_cpu_threads_per_process dynamo_backend dynamo_mode
deepspeed_config_file zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path
offload_param_nvme_path gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model
deepspeed_moe_layer_cls_names
fsdp_version fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy fsdp_reshard_after_forward
fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_backward_prefetch fsdp_state_dict_type
fsdp_forward_prefetch fsdp_use_orig_params fsdp_cpu_ram_efficient_loading fsdp_sync_module_states
fsdp_activation_checkpointing fsdp_activation_checkpointing_offload
megatron_lm_tp_degree megatron_lm_use_custom_fsdp megatron_lm_no_load_optim megatron_lm_eod_mask_loss
megatron_lm_overlap_cpu_optimizer_d2h_h2d megatron_lm_no_save_optim megatron_lm_optimizer_cpu_offload
megatron_lm_use_precision_aware_optimizer megatron_lm_decoder_last_pipeline_num_layers megatron_lm_pp_degree
megatron_lm_num_micro_batches megatron_lm_sequence_parallelism megatron_lm_recompute_activations
megatron_lm_use_distributed_optimizer megatron_lm_gradient_clipping megatron_lm_recompute_granularity
megatron_lm_recompute_method megatron_lm_recompute_num_layers megatron_lm_attention_backend
megatron_lm_expert_model_parallel_size megatron_lm_context_parallel_size megatron_lm_attention_dropout
megatron_lm_hidden_dropout megatron_lm_attention_softmax_in_fp32 megatron_lm_expert_tensor_parallel_size
megatron_lm_calculate_per_token_loss megatron_lm_use_rotary_position_embeddings
fp8_backend fp8_margin fp8_interval fp8_format fp8_amax_history_len fp8_amax_compute_algo
fp8_override_linear_precision fp8_opt_level fp8_enable_fsdp_float8_all_gather fp8_pad_inner_dim
parallelism_config_dp_replicate_size parallelism_config_dp_shard_size parallelism_config_tp_size
parallelism_config_cp_size parallelism_config_cp_backend parallelism_config_cp_comm_strategy
parallelism_config_sp_size parallelism_config_sp_backend parallelism_config_sp_seq_length
parallelism_config_sp_seq_length_is_variable parallelism_config_sp_attn_implementation
"""
_ACCELERATE_SWITCHES = """
cpu multi_gpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic dynamo_use_regional_compilation
use_deepspeed use_fsdp use_parallelism_config use_megatron_lm downcast_bf16 fp8_use_autocast_during_eval debug
"""
_TPU = "the pool's nodes have no TPU that Accelerate can start; use `%sky run` with JAX"
_SAGEMAKER = "the pool's own provider makes the machines: `--provider aws`"
_DEEPSPEED = "the pool starts the processes itself: no hosts are chosen by DeepSpeed"
ACCELERATE = (
    LauncherOption(_hyphens("config_file"), "config", "FILE", "its settings; numbers of machines are the pool's"),
    LauncherOption(_hyphens("num_processes"), "processes", "N", "processes in all, shared out among the nodes"),
    LauncherOption(_hyphens("num_machines"), "nodes", "N", "so many of the pool's nodes, the first ones (all)"),
    LauncherOption(_hyphens("max_restarts"), "restarts", "N", "as for torchrun (0)"),
    LauncherOption(("-m", "--module"), "module", help="the script is a module: `-m package.module`"),
    LauncherOption(_hyphens("no_python"), "no_python", help="the script is a program of the nodes"),
    LauncherOption(("--role",), "role", "NAME", "the processes' ROLE_NAME (default)"),
    *(
        LauncherOption(_hyphens(name), "pool", "VALUE", _MEETING)
        for name in (
            *("machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "rdzv_conf"),
            *("monitor_interval", "main_training_function"),
        )
    ),
    LauncherOption(_hyphens("same_network"), "pool", help=_MEETING),
    *(
        LauncherOption(_hyphens(name), "accelerate", "VALUE", "as Accelerate reads it")
        for name in _ACCELERATE_VALUES.split()
    ),
    *(
        LauncherOption(_hyphens(name), "accelerate", "", "as Accelerate reads it")
        for name in _ACCELERATE_SWITCHES.split()
    ),
    LauncherOption(("--tee", "-t"), metavar="N", refused=_LOGS),
    LauncherOption(_hyphens("log_dir"), metavar="FOLDER", refused=_LOGS),
    LauncherOption(
        _hyphens("gpu_ids"), metavar="IDS", refused="the pool shares a node's devices out; `--on` chooses ranks"
    ),
    *(
        LauncherOption(_hyphens(name), refused=_TPU)
        for name in ("tpu", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo")
    ),
    LauncherOption(("--vm",), metavar="NAME", refused=_TPU),
    *(
        LauncherOption(_hyphens(name), metavar="VALUE", refused=_SAGEMAKER)
        for name in ("aws_access_key_id", "aws_secret_access_key")
    ),
    *(
        LauncherOption(_hyphens(f"deepspeed_{name}"), metavar="VALUE", refused=_DEEPSPEED)
        for name in ("hostfile", "exclusion_filter", "inclusion_filter", "multinode_launcher")
    ),
    LauncherOption(_hyphens("mpirun_hostfile"), metavar="FILE", refused="the pool starts the processes, not mpirun"),
)

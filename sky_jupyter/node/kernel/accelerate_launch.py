"""Program that becomes a script with the variables of ``accelerate launch``.

Each process of ``%sky accelerate launch`` runs it as a file, with its node's Python: its arguments are our options in
JSON, and the script's command. Accelerate itself parses the options; the pool sets the processes, their numbers and
their rendezvous.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NoReturn

# The variables of torchrun, which the pool has set.
_OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def variables(options: list[str], config: str | None) -> dict[str, str]:
    """Return the environment that ``accelerate launch`` would give its processes.

    Parameters
    ----------
    options : list of str
        Options of ``accelerate launch``, without those on processes and machines.
    config : str, optional
        The text of a file of ``accelerate config``.

    Returns
    -------
    dict of str to str
        The whole environment.
    """
    import logging
    import tempfile

    from accelerate.commands import launch
    from accelerate.utils import launch as environments

    # Messages on options with defaults would come from each process.
    logging.getLogger(launch.__name__).setLevel(logging.ERROR)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        if config is not None:
            file.write(config)
            file.flush()
            options = [*options, "--config_file", file.name]
        # A free port, which is not used: the pool's own port may be in use by now.
        world = ["--num_processes", os.environ["WORLD_SIZE"], "--num_machines", "1", "--main_process_port", "0"]
        parser = launch.launch_command_parser()
        # Accelerate would print its usage of a hundred lines.
        parser.error = _refuse
        given = parser.parse_args([*options, *world, "script"])
        # The function that completes the options has no public name.
        given, defaults, from_config = launch._validate_launch_command(given)
    if given.use_deepspeed and not given.cpu:
        fields = list(defaults.deepspeed_config.keys()) if defaults else []
        given.deepspeed_fields_from_accelerate_config = ",".join(
            [*fields, *(["mixed_precision"] if from_config else [])]
        )
        return dict(environments.prepare_deepspeed_cmd_env(given)[1])
    if (given.use_fsdp or given.use_megatron_lm or given.multi_gpu) and not given.cpu:
        return dict(environments.prepare_multi_gpu_env(given))
    return dict(environments.prepare_simple_launcher_cmd_env(given)[1])


def _refuse(message: str) -> NoReturn:
    sys.exit(f"accelerate launch: {message}")


def main() -> None:
    """Set the variables, and become the script."""
    given, *command = sys.argv[1:]
    asked = json.loads(given)
    ours = {name: os.environ[name] for name in _OURS if name in os.environ}
    try:
        env = variables(asked["options"], asked["config"])
    except ImportError as error:
        sys.exit(f"accelerate launch needs Accelerate on the node: {error}; `--pip accelerate` brings it")
    except (ValueError, AssertionError) as error:
        _refuse(str(error))
    os.execvpe(command[0], command, {**env, **ours})


if __name__ == "__main__":
    # The folder of this file has modules with names of the standard library.
    del sys.path[0]
    main()

"""The link: a process that owns a pool's SSH sessions and tunnels.

It runs beside the notebook's kernel, as ``python -m sky_jupyter.machines.link FOLDER``. `client` and `machine` are the
kernel's side, and import no paramiko.
"""

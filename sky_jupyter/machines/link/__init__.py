"""The link: a small process beside the notebook's kernel that holds a remote pool's SSH sessions and tunnels.

The notebook's side is `client` and `machine`; it imports no paramiko. The rest runs in the process,
which is started as ``python -m sky_jupyter.machines.link FOLDER``.
"""

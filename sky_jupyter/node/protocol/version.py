"""The number of what managers, agents and a pool's files say to each other.

Raise it by one with any change after which a manager of the version before cannot work with a pool of
this one, or the other way round: a call of an agent's that is new, gone or takes something else and that
every manager needs; another form of blobs, journals, `host.json` or `pool.record`. What is only added,
and may be missing, needs no new number. A pool of another number is not attached to, and can be ended.
"""

PROTOCOL = 4
# How a pool's root process on a machine is called on its command line (``python -m NAME FOLDER``). Other versions
# find what runs by it, and end it: it stays as it is, wherever the module moves.
HOST_PROCESS = "sky_jupyter.node.host"

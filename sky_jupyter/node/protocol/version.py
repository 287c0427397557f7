"""Version number of the protocol between managers, agents and pool files.

Raise it by one with any change after which a manager of the previous version cannot work with a pool of this one, or
the reverse: a call of the agents that every manager needs is new, gone or has other arguments; blobs, journals,
`host.json` or `pool.record` have another format; a class or function that is pickled by name has another module.
Optional additions need no new number. A pool of another version cannot be attached to, but can be ended.
"""

PROTOCOL = 11
# Module name of a pool's root process on its command line (``python -m NAME FOLDER``). Other versions find running
# pools by this name and end them: it never changes, wherever the module moves.
HOST_PROCESS = "sky_jupyter.node.host"

"""The pools of other processes, as the command line, the Jupyter server and the MCP server reach them.

A pool has one manager. Whoever else wants something of it reads the registry and the journals of this machine, or asks
the manager's kernel on its control channel; nothing here takes a pool over.
"""

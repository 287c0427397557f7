"""Pools of other processes, for the command line, Jupyter server and MCP server.

A pool has one manager. Whoever else wants something of it reads the registry and the journals of this machine, or asks
the manager's kernel on its control channel; nothing here takes a pool over.
"""

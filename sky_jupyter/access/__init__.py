"""Pools of other processes, for the command line, Jupyter server and MCP server.

A pool has one manager. Other processes read the registry and the journals of this machine, or send requests to the
manager's kernel on its control channel. Nothing here takes a pool from its manager.
"""

"""Machines over SSH: configuration, host keys, log-in, and commands there.

Only `session`, `auth` and what is built on them import paramiko, and only when a connection is made.
"""

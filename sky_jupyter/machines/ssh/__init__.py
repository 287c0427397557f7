"""Machines over SSH: configuration, host keys, log-in, and commands there.

Only `session`, `auth` and modules that use them import paramiko, and only when a connection is made.
"""

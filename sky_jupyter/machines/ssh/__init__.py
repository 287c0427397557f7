"""Machines over SSH: which host is meant, whether it is that host, who logs in, and what runs there.

Only `session`, `auth` and what is built on them import paramiko, and only when a connection is made.
"""

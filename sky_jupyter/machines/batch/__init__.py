"""Nodes of a batch job as machines: a command is a job step of the login host."""

"""Nodes of a batch job as machines: commands run as job steps of the login host."""

"""Nodes of a batch scheduler's job as machines: commands run as steps of the job, started on its login host."""

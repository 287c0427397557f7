"""A run's data: outcomes, output, results and stacks."""

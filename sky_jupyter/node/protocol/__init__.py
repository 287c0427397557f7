"""The contract between manager, agent and kernel."""

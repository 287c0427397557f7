"""The manager's event loop, events, phases and retries."""

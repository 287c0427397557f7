"""Names of requests to a notebook's kernel; see docs/actions.md."""

FRONTEND = "sky_request"
TERMINAL = "sky_terminal_request"
COMPLETE, INSPECT = "sky_complete_request", "sky_inspect_request"

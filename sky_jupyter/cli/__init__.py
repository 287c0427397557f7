"""The program ``sky-jupyter``: pools from a terminal, and the MCP server."""

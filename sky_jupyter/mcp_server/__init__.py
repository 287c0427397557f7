"""MCP server: live pools as tools of an agent, over stdio or Jupyter Server."""

"""What a cell depends on: its names, who wrote them last, and their values as blobs."""

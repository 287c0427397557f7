"""Dependencies of a cell: names, their last writers, and values as blobs."""

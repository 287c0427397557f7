"""Files and blobs on their way to a node, and in its cache."""

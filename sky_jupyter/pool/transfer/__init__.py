"""Files, blobs, values, code and packages on their way to the nodes and back."""

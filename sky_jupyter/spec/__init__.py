"""What a pool is to be: its image, options, accelerators and size. Values only."""

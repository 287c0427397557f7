"""Programs as people write them by hand, without a pool: what ours is measured against."""

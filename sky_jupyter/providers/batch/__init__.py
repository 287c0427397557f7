"""Jobs of a batch scheduler as pools: what providers of such jobs have in common."""

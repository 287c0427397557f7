"""What a person sees: views that listen to a pool's events, for notebooks and for terminals."""

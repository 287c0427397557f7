"""Figures as ratios: each benchmark measures ours and its peers by turns, in one run."""

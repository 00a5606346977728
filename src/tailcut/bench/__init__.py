"""Benchmarks: all peers in one run, in turns, values checked, every sample kept."""

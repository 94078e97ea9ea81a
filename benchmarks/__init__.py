"""Benchmarks: a plain reference trainer, ours, and ours with each optimisation off, and others. Not run as tests."""

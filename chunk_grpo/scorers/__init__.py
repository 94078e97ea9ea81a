"""Rewards and benchmarks behind one protocol."""

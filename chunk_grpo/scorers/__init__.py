"""Rewards and benchmarks with a common interface."""

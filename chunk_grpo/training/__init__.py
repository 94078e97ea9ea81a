"""The training loop: it holds no formula, only the order of things, checkpoints and metrics."""

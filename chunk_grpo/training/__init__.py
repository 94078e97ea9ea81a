"""The training loop, checkpoints and metrics. Formulas are in `chunk_grpo.core`."""

"""Runs of the pipeline, independent of Prefect: clones, commands, DVC, outcomes."""

"""Runs of the pipeline, whoever starts them: clones, commands of which nothing is left behind, DVC, outcomes."""

"""Prefect flows: run the stages of dvc.yaml in its order, and show results in the UI."""

"""The Prefect flows: they run the stages of dvc.yaml, in its order, and show what happened."""

"""Training from Python, without DVC, Prefect and params.yaml: the functions of docs/library.md."""

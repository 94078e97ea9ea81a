"""What runs the flows: a Prefect server, its work pools, deployments and workers."""

"""What stages hand to each other: schemas, reading and writing, run manifests."""

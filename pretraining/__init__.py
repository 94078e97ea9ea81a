"""Recipe of the toy checkpoints, in steps `python -m pretraining.STEP` that `dvc repro` runs."""

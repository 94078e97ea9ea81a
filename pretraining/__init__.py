"""Recipe of assets/tiny-flux and assets/tiny-sd3, in steps `python -m pretraining.STEP` that `dvc repro` runs."""

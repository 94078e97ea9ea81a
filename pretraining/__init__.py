"""Recipe of assets/tiny-flux in four steps, each `python -m pretraining.STEP`, run by `dvc repro`."""

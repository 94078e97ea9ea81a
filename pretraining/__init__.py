"""How assets/tiny-flux was made: a recipe of four steps, each `python -m pretraining.STEP`, run by `dvc repro`."""

"""What training costs: a plain reference trainer, ours, and each optimisation switched off. Not part of the tests."""

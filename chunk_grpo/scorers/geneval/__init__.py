"""GenEval: its rules, and a detector and a classifier of colours that feed them."""

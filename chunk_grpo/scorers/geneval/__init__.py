"""GenEval: the rules, with the detector and the colour classifier that they use."""

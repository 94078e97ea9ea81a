"""The paper's algorithm as pure functions of tensors. Requires only torch and the standard library.

Shape letters: P prompts, G images in a group, B = P * G trajectories, S sampling
steps, N = S - 1 steps with noise (the trainable ones), K chunks, L latent tokens, D channels of a token.

Time `t` is the noise level: 1 is noise, 0 is data. Steps count from 0 at the noise end; chunks count from 0
too. Equation numbers refer to arXiv 2510.21583 v1; docs/equations.md maps each to its function and test.
"""

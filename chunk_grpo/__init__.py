"""Chunk-level GRPO for flow-matching text-to-image models.

Shape letters: B trajectories, G images of a group, P prompts, S steps, K chunks, L latent tokens, D token channels,
C H W image. `t` is the noise level: 1 is noise, 0 is data.
"""

__version__ = "0.1.0"

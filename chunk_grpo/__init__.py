"""Chunk-level GRPO for flow-matching text-to-image models.

Shape letters used everywhere: B trajectories, G group, P prompts, S steps, K chunks, L latent tokens,
D channels, C H W image. `t` is the noise level: 1 is noise, 0 is data.
"""

__version__ = "0.1.0"

"""A small random FluxKontextPipeline in the real layout, its text encoders those of the toy."""

from diffusers import FluxKontextPipeline

from tests.families.case import Case
from tests.families.checkpoint_flux import random_pipeline as random_flux

CASE = Case(
    (1.0, 2.5),
    lambda s, n: {"true_cfg_scale": s, "negative_prompt": n, "guidance_scale": 3.5, "_auto_resize": False},
    tokens=8,
    sources=((24, 48), (40, 64)),
    of_size=lambda height, width: {"max_area": height * width},
)


def random_pipeline() -> FluxKontextPipeline:
    return FluxKontextPipeline(**random_flux().components)

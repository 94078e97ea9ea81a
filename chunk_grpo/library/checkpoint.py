"""A checkpoint from whose parts models are loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from chunk_grpo.config.models import GenerateParams, ModelParams, SamplingParams
from chunk_grpo.families.base import Family, Part
from chunk_grpo.families.options import options_of
from chunk_grpo.families.registry import load_family
from chunk_grpo.recorded import require_model


class Checkpoint:
    """A checkpoint for images of one size and scale of guidance."""

    def __init__(
        self,
        settings: ModelParams,
        cfg_scale: float = 1.0,
        size: ModelParams | GenerateParams | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Load nothing yet. `size` is the section with the size of the images, by default `settings`.

        `check` is called before and after each loading, for files may be edited while they are read.
        """
        self.settings, self.cfg_scale = settings, cfg_scale
        self._size, self._check = size or settings, check

    def loaded(self, *parts: Part) -> Family:
        """Parts of the checkpoint, loaded anew.

        Raises:
            DataError: The checkpoint is missing, broken or of another family.
        """
        self._check()
        family = load_family(self.settings.family, options_of(self.settings, self.cfg_scale, self._size), parts)
        self._check()
        return family


def recorded_checkpoint(
    settings: ModelParams, record: str, sampler: SamplingParams | GenerateParams | None = None
) -> Checkpoint:
    """The checkpoint of params.yaml for a sampler; another one than the stage `inputs` recorded is refused."""
    size = sampler if isinstance(sampler, GenerateParams) else settings
    cfg_scale = 1.0 if sampler is None else sampler.cfg_scale
    return Checkpoint(settings, cfg_scale, size, partial(require_model, settings, record))

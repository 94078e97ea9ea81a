"""A family from outside the package: FLUX.1 whose conditioning has other names, and one tensor more."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from chunk_grpo.families.models.flux import FluxFamily


class DummyFamily(FluxFamily):
    """Its text has a mask, which the network does not need."""

    def text_tensors(self, prompts: Sequence[str]) -> Mapping[str, Tensor]:
        text = super().text_tensors(prompts)
        mask = torch.ones(text["prompt_embeds"].shape[:2], dtype=torch.bool)
        return {"words": text["prompt_embeds"], "summary": text["pooled"], "mask": mask}

    def text_example(self, tokens: int) -> Mapping[str, Tensor]:
        text = super().text_example(tokens)
        mask = torch.ones(1, tokens, dtype=torch.bool)
        return {"words": text["prompt_embeds"], "summary": text["pooled"], "mask": mask}

    def network_output(self, network: nn.Module, x: Tensor, t: Tensor, text: Mapping[str, Tensor]) -> Tensor:
        assert text["mask"].dtype == torch.bool and bool(text["mask"].all())
        return super().network_output(network, x, t, {"prompt_embeds": text["words"], "pooled": text["summary"]})


FAMILY = DummyFamily

"""Settings of a variant's training, as recorded by the stage `inputs` and checked by the stage `train`."""

from typing import Any

from chunk_grpo.config import Params


def training_settings(params: Params, variant: str) -> dict[str, Any]:
    """The settings of a variant's training in `train`, `variants` and `chunks`, for each training seed."""
    own = params.variants[variant]
    return {
        "train": params.train.model_dump(mode="json", exclude={"seeds"}),
        "variant": own.model_dump(mode="json"),
        "plan": params.chunks.plans[own.plan].model_dump(mode="json"),
    }

"""params.yaml as frozen pydantic models: fields, rules across sections, and reading."""

from chunk_grpo.config.load import load_params, parse_params, read_raw_params
from chunk_grpo.config.models import AdaptivePlan, GuidedPlan, Params, PlanParams, SamplingParams
from chunk_grpo.config.resolved import ResolvedVariant, resolve
from chunk_grpo.config.training import TrainParams
from chunk_grpo.config.variants import BranchingParams, VariantParams

__all__ = [
    "AdaptivePlan",
    "BranchingParams",
    "GuidedPlan",
    "Params",
    "PlanParams",
    "ResolvedVariant",
    "SamplingParams",
    "TrainParams",
    "VariantParams",
    "load_params",
    "parse_params",
    "read_raw_params",
    "resolve",
]

"""params.yaml as frozen pydantic models: fields, rules across sections, and reading."""

from chunk_grpo.config.load import load_params, parse_params, read_raw_params
from chunk_grpo.config.models import (
    AdaptivePlan,
    ChunksParams,
    EncodeParams,
    EqualPlan,
    GenerateParams,
    GuidedPlan,
    ListedPlan,
    ModelParams,
    Params,
    PlanParams,
    ProfileParams,
    ReportParams,
    SamplingParams,
    SinglePlan,
    StepPlan,
)
from chunk_grpo.config.prompts import PromptsParams
from chunk_grpo.config.resolved import ResolvedVariant, resolve, resolved_variant
from chunk_grpo.config.training import HeldoutParams, LoraParams, TrainParams
from chunk_grpo.config.variants import BranchingParams, VariantParams, WindowParams

__all__ = [
    "AdaptivePlan",
    "BranchingParams",
    "ChunksParams",
    "EncodeParams",
    "EqualPlan",
    "GenerateParams",
    "GuidedPlan",
    "HeldoutParams",
    "ListedPlan",
    "LoraParams",
    "ModelParams",
    "Params",
    "PlanParams",
    "ProfileParams",
    "PromptsParams",
    "ReportParams",
    "ResolvedVariant",
    "SamplingParams",
    "SinglePlan",
    "StepPlan",
    "TrainParams",
    "VariantParams",
    "WindowParams",
    "load_params",
    "parse_params",
    "read_raw_params",
    "resolve",
    "resolved_variant",
]

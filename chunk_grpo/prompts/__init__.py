"""Prompts: read from users' files and benchmarks and checked, or generated.

Nothing is dropped or changed silently: problems are refused together with their line numbers, or reported.
"""

from chunk_grpo.prompts.checks import check_lengths, drop_long, normalized, shared_prompts, text_key
from chunk_grpo.prompts.coco import coco_prompts
from chunk_grpo.prompts.dpg import read_dpg
from chunk_grpo.prompts.fields import FieldNames
from chunk_grpo.prompts.findings import Findings, beginning, dropped
from chunk_grpo.prompts.geneval import content_key, read_geneval, read_geneval_benchmark
from chunk_grpo.prompts.hub import hub_file
from chunk_grpo.prompts.read import PromptSource, read_prompt_file
from chunk_grpo.prompts.rows import CheckedPrompts, Finding, PromptReport, PromptRow
from chunk_grpo.prompts.wise import read_wise

__all__ = [
    "CheckedPrompts",
    "FieldNames",
    "Finding",
    "Findings",
    "PromptReport",
    "PromptRow",
    "PromptSource",
    "beginning",
    "check_lengths",
    "coco_prompts",
    "content_key",
    "drop_long",
    "dropped",
    "hub_file",
    "normalized",
    "read_dpg",
    "read_geneval",
    "read_geneval_benchmark",
    "read_prompt_file",
    "read_wise",
    "shared_prompts",
    "text_key",
]

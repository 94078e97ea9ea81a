"""Prompts: read from users' files and benchmarks and checked, or generated.

Nothing is dropped or changed silently: problems are refused together with their line numbers, or reported.
"""

from chunk_grpo.prompts.checks import check_lengths, normalized, shared_prompts
from chunk_grpo.prompts.coco import coco_prompts
from chunk_grpo.prompts.fields import FieldNames
from chunk_grpo.prompts.geneval import read_geneval
from chunk_grpo.prompts.read import PromptSource, read_prompt_file
from chunk_grpo.prompts.rows import CheckedPrompts, Finding, PromptReport, PromptRow
from chunk_grpo.prompts.wise import read_wise

__all__ = [
    "CheckedPrompts",
    "FieldNames",
    "Finding",
    "PromptReport",
    "PromptRow",
    "PromptSource",
    "check_lengths",
    "coco_prompts",
    "normalized",
    "read_geneval",
    "read_prompt_file",
    "read_wise",
    "shared_prompts",
]

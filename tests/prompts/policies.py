"""What to do with doubtful prompts: refuse all, or let pass what may pass."""

from chunk_grpo.config.prompts import PromptChecks

STRICT = PromptChecks(duplicates="refuse", empty="refuse", spaces="refuse", too_long="refuse")
LENIENT = PromptChecks(duplicates="drop", empty="drop", spaces="strip", too_long="keep")

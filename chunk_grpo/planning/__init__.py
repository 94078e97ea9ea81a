"""What a run will take, from its configuration files alone: operations, hours, traffic, memory, disk, money.

Pure functions of params.yaml and the checkpoint's config.json. No weights, no network, no torch. docs/planning.md has
the formulas.
"""

from chunk_grpo.planning.machines import GPUS, Machine, machine
from chunk_grpo.planning.plan import Plan, make_plan

__all__ = ["GPUS", "Machine", "Plan", "machine", "make_plan"]

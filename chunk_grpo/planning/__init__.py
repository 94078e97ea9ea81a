"""What a run will take, from its configuration files alone: operations, hours, traffic, memory, disk, money.

`plan.make_plan` has all of it. Functions of params.yaml, the checkpoint's config.json files, sizes that
`chunk_grpo.families.tracing` reads off the real classes, and evaluations that `dry_run` counts in the real trainer. No
weights, no network. docs/planning.md has the formulas.
"""

"""Hybrid inference: the tuned model starts an image, the base model finishes it."""


def uses_base(step: int, num_steps: int, base_steps: int) -> bool:
    """Whether the base model takes a step.

    Paper: App. B.3: of 50 steps the first 30 take the trained model and the last 20 the base model, against
    reward hacking.

    Args:
        step: Step number from noise to image, 0 .. num_steps - 1.
        num_steps: Number of sampling steps S.
        base_steps: Number of last steps that the base model takes, from 0 (tuned throughout) to S (base throughout).

    Returns:
        True for the last base_steps steps.

    Raises:
        ValueError: step or base_steps is out of range.
    """
    if not 0 <= base_steps <= num_steps:
        raise ValueError(f"base_steps must be from 0 to num_steps {num_steps}, got {base_steps}")
    if not 0 <= step < num_steps:
        raise ValueError(f"step must be from 0 to {num_steps - 1}, got {step}")
    return step >= num_steps - base_steps

"""Best held-out score so far, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping


class BestScore:
    """Best of the scores so far. Higher is better.

    Attributes:
        best_iteration: Iteration of the best score, the earliest of equal ones; None before the first.
        best_score: Best score; None before the first.
    """

    def __init__(self) -> None:
        """Start without measurements."""
        self.best_iteration: int | None = None
        self.best_score: float | None = None
        self._last_iteration: int | None = None
        self._since_best = 0

    def update(self, iteration: int, score: float) -> bool:
        """Add a measurement.

        Args:
            iteration: Iteration of the policy that was measured; later than the one before.
            score: Score of that policy, finite.

        Returns:
            Whether it is the best so far: the first, or strictly greater than all before.

        Raises:
            ValueError: The score is not finite, or the iteration is not later than the last one.
        """
        if not math.isfinite(score):
            raise ValueError(f"score: must be finite, got {score} at iteration {iteration}")
        if self._last_iteration is not None and iteration <= self._last_iteration:
            raise ValueError(f"iteration: must be later than {self._last_iteration}, got {iteration}")
        self._last_iteration = iteration
        if self.best_score is not None and score <= self.best_score:
            self._since_best += 1
            return False
        self.best_iteration, self.best_score, self._since_best = iteration, float(score), 0
        return True

    def should_stop(self, patience: int | None) -> bool:
        """Whether the last `patience` measurements brought no new best.

        Args:
            patience: Number of measurements, at least 1; None never stops.

        Raises:
            ValueError: The patience is below 1.
        """
        if patience is None:
            return False
        if patience < 1:
            raise ValueError(f"patience: must be at least 1, or None to never stop, got {patience}")
        return self._since_best >= patience

    def state(self) -> dict[str, float | int]:
        """Input of `from_state`, for a checkpoint; empty before the first measurement."""
        if self.best_iteration is None or self.best_score is None or self._last_iteration is None:
            return {}
        return {
            "best_iteration": self.best_iteration,
            "best_score": self.best_score,
            "last_iteration": self._last_iteration,
            "since_best": self._since_best,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, float | int]) -> BestScore:
        """Restore the result of `state`.

        Raises:
            ValueError: The keys differ from the keys that `state` returns.
        """
        best = cls()
        if not state:
            return best
        known = {"best_iteration", "best_score", "last_iteration", "since_best"}
        if set(state) != known:
            raise ValueError(f"state of the best score: needs {sorted(known)}, got {sorted(state)}")
        best.update(int(state["best_iteration"]), state["best_score"])
        best._last_iteration, best._since_best = int(state["last_iteration"]), int(state["since_best"])
        return best

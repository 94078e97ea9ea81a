"""A controller against reward hacking: held-out scores that are not trained on decide how far an update may go.

After a held-out evaluation whose score has fallen by more than a tolerance below the best one, training goes back to
the best state, and continues with a higher KL coefficient and a smaller clip range. After too many falls it ends there.
The rule is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from chunk_grpo.config.training import ControllerParams
from chunk_grpo.core.objective import Bounds

Verdict = Literal["best", "within", "fallen", "ended"]


class Controller:
    """Follows the held-out score of a training.

    Attributes:
        falls: Number of falls so far.
        has_ended: Whether training is over.
    """

    def __init__(self, settings: ControllerParams, bounds: Bounds) -> None:
        """Start without evaluations.

        Args:
            settings: Tolerance and steps.
            bounds: The variant's bounds.
        """
        self._settings, self._first = settings, bounds
        self._best: float | None = None
        self._kl_coef, self._clip_scale = bounds.kl_coef, 1.0
        self.falls, self.has_ended = 0, False

    @property
    def bounds(self) -> Bounds:
        """Bounds of the next updates."""
        return replace(
            self._first, clip_range=self._first.clip_range * self._clip_scale, kl_coef=self._kl_coef
        )

    def judge(self, score: float) -> Verdict:
        """Add a held-out score, higher is better, and set the bounds.

        Returns:
            "best": the first score, or one above all earlier ones. "fallen": go back to the best state. "ended": go
            back to the best state and end training. "within": else.
        """
        if self._best is None or score > self._best:
            self._best = score
            return "best"
        if score >= self._best - self._settings.tolerance:
            return "within"
        self.falls += 1
        if self.falls > self._settings.falls:
            self.has_ended = True
            return "ended"
        self._kl_coef = max(self._kl_coef * self._settings.kl_factor, self._settings.kl_coef)
        self._clip_scale *= self._settings.clip_factor
        return "fallen"

    def metrics(self) -> dict[str, float]:
        """KL coefficient, factor of the clip range and number of falls by name."""
        return {
            "controller/kl_coef": self._kl_coef,
            "controller/clip_scale": self._clip_scale,
            "controller/falls": float(self.falls),
        }

    def state(self) -> dict[str, Any]:
        """Input of `load_state`, for a checkpoint."""
        return {
            "best": self._best,
            "kl_coef": self._kl_coef,
            "clip_scale": self._clip_scale,
            "falls": self.falls,
            "has_ended": self.has_ended,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._best, self.falls, self.has_ended = state["best"], state["falls"], state["has_ended"]
        self._kl_coef, self._clip_scale = state["kl_coef"], state["clip_scale"]

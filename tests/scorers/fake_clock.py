"""A clock that sleeping moves on, and nothing else."""


class FakeClock:
    """Stands for the module `time`.

    Attributes:
        waits: The seconds of each sleep.
    """

    def __init__(self) -> None:
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return 100.0 + sum(self.waits)

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

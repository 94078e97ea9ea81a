"""A clock that sleeping moves on, and nothing else."""


class FakeClock:
    """Stands for `time.monotonic` and `time.sleep`.

    Attributes:
        waits: The seconds of each sleep.
    """

    def __init__(self) -> None:
        self.waits: list[float] = []

    def __call__(self) -> float:
        return 100.0 + sum(self.waits)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

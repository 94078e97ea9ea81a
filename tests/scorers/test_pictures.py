"""Pictures that are prepared in threads keep their order, and a failure is not lost."""

from __future__ import annotations

import threading
import time

import numpy as np
from PIL import Image

from chunk_grpo.scorers.pictures import MAX_THREADS, of_each_picture


def test_results_are_in_the_order_of_the_pictures(monkeypatch):
    """The first is made to wait until the second is done, which takes two threads."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    images = np.arange(5, dtype=np.uint8)[:, None, None, None].repeat(3, axis=-1)
    second = threading.Event()

    def make(image: Image.Image) -> int:
        number = image.getpixel((0, 0))[0]
        if number == 0:
            assert second.wait(10)
        if number == 1:
            second.set()
        return int(number)

    assert of_each_picture(make, images) == [0, 1, 2, 3, 4]
    assert of_each_picture(make, images[:0]) == []


def test_threads_are_bounded(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    images = np.zeros((100, 1, 1, 3), dtype=np.uint8)

    def make(image: Image.Image) -> str:
        time.sleep(0.01)  # a thread that is free would take the next picture
        return threading.current_thread().name

    assert len(set(of_each_picture(make, images))) == MAX_THREADS

"""500 images, a judge that answers badly in every way, and a client that is killed five times on the way."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.conftest import ROOT
from tests.scorers.judge_server import JudgeServer, Reply, Request, completion
from tests.scorers.test_vlm_judge import vlm_judge

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

COUNT, KILLS, CONCURRENCY, ATTEMPTS = 500, 5, 8, 3

TIMEOUT = 10.0
"""Seconds that the client waits for a reply; a slow reply takes 1.2 times that."""

RETRY_AFTER = 1.0

ONCE: dict[str, Reply] = {
    "empty": Reply(completion("")),
    "null": Reply(completion(None, "length")),
    "words": Reply("I would call this a rather good one."),
    "order": Reply("4 :Score"),
    "several": Reply("Score: 2, or perhaps Score: 3"),
    "too high": Reply("Score: 9"),
    "part": Reply("Score: 45"),
    "cut": Reply(b'{"choices": [{"mess'),
    "no JSON": Reply(b"<html>", headers={"Content-Type": "text/html"}),
    "limit": Reply(b"{}", 429, {"Retry-After": f"{RETRY_AFTER:g}"}),
    "fault": Reply(b"oops", 500),
    "hang": Reply(completion("Score: 1"), wait_seconds=1.2 * TIMEOUT),
    "broken": Reply(drop=True),
}
"""Replies to the first request about an image; the next one is answered well."""

ALWAYS: dict[str, Reply] = {
    "refusal": Reply("I'm sorry, I can't assist with that."),
    "filter": Reply(b'{"error": {"code": "content_filter", "message": "was filtered"}}', 400),
}
"""Replies to every request about an image, which therefore has no score."""


@dataclass(frozen=True)
class Asked:
    """A request: number of the image, of the run, the kind of its reply, and seconds."""

    image: int
    run: int
    kind: str
    time: float


class BadJudge:
    """Answers of the server, and what was asked.

    Attributes:
        manners: Image to the kind of its first or of all replies; those that are not in it are answered well.
        asked: Every request, in order.
        run: Number of the client's run.
    """

    def __init__(self, rng: random.Random) -> None:
        numbers = iter(rng.sample(range(COUNT), COUNT))
        counts = {name: 3 if name == "hang" else 12 for name in ONCE} | dict.fromkeys(ALWAYS, 4)
        self.manners = {next(numbers): name for name, count in counts.items() for _ in range(count)}
        self.asked: list[Asked] = []
        self.run = 0
        self._seen: Counter[int] = Counter()
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Reply:
        red, green, _ = map(int, request.image[0, 0])
        image = 256 * red + green
        with self._lock:
            kind = self.manners.get(image, "well")
            if kind in ONCE and self._seen[image]:
                kind = "well"
            self._seen[image] += 1
            self.asked.append(Asked(image, self.run, kind, request.time))
        time.sleep(0.02)
        if kind == "well":
            return Reply(f"Score: {truth(image)}")
        return ONCE[kind] if kind in ONCE else ALWAYS[kind]


def truth(image: int) -> int:
    return 1 + image % 5


def write_inputs(folder: Path, url: str) -> None:
    """500 images whose pixels and prompts hold their number, and the scorer's settings."""
    (folder / "made").mkdir()
    for number in range(COUNT):
        pixels = np.full((8, 8, 3), (number // 256, number % 256, 0), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "made" / f"{number}.png")
    (folder / "prompts.txt").write_text("".join(f"image {number}\n" for number in range(COUNT)))
    settings = vlm_judge(
        url,
        folder / "answers",
        reading={
            "kind": "number",
            "pattern": r"Score: (\d)",
            "lowest": 1.0,
            "highest": 5.0,
            "scale": "judge",
        },
        concurrency=CONCURRENCY,
        attempts=ATTEMPTS,
        timeout_seconds=TIMEOUT,
    ).settings
    (folder / "own.yaml").write_text(
        json.dumps({"scorers": {"stars": json.loads(settings.model_dump_json())}})
    )


def start(folder: Path) -> subprocess.Popen[bytes]:
    """`make score` of the folder."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "infra.score_images",
            "made",
            "--prompts",
            "prompts.txt",
            "--scorers",
            "own.yaml",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )


def stored(folder: Path) -> set[int]:
    """Images with an answer on the disk."""
    return {
        int(json.loads(line)["label"].split()[-1].rstrip("'"))
        for path in (folder / "answers").glob("*.jsonl")
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    }


def kill_at(process: subprocess.Popen[bytes], judge: BadJudge, requests: int) -> None:
    """Kill the client once the judge has had so many requests."""
    until = time.monotonic() + 300
    while len(judge.asked) < requests and time.monotonic() < until:
        assert process.poll() is None, "the client has ended before it was killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BadJudge, Path, list[set[int]]]]:
    """The judge after all runs, their folder, and the stored answers at the start of each run."""
    folder, rng = tmp_path_factory.mktemp("bad-judge"), random.Random(3)
    judge = BadJudge(rng)
    moments = sorted(rng.sample(range(20, COUNT - 20), KILLS))
    known: list[set[int]] = []
    with JudgeServer(answer=judge.answer) as server:
        write_inputs(folder, server.url)
        for moment in moments:
            known.append(stored(folder))
            kill_at(start(folder), judge, moment)
            judge.run += 1
        known.append(stored(folder))
        last = start(folder)
        assert last.wait(600) == 0
        yield judge, folder, known


def rows(folder: Path) -> dict[int, dict[str, Any]]:
    found = pq.read_table(folder / "scores" / "made" / "scores.parquet").to_pylist()
    table = {int(row["image"].removesuffix(".png")): row for row in found if row["metric"] == "score"}
    assert len(table) == len(found)
    return table


def test_table_has_true_scores_and_only_expected_refusals(finished) -> None:
    judge, folder, _ = finished
    table = rows(folder)
    assert sorted(table) == list(range(COUNT))
    refused = {image for image, kind in judge.manners.items() if kind in ALWAYS}
    assert {image for image, row in table.items() if row["value"] is None} == refused
    assert {image: row["value"] for image, row in table.items() if image not in refused} == {
        image: truth(image) for image in range(COUNT) if image not in refused
    }
    for image in refused:
        expected = {"refusal": "no well-formed answer in 3 attempts", "filter": "was filtered"}[
            judge.manners[image]
        ]
        assert expected in table[image]["refusal"]


def test_nothing_that_was_answered_is_asked_again(finished) -> None:
    judge, _, known = finished
    for run, before in enumerate(known):
        assert before.isdisjoint(asked.image for asked in judge.asked if asked.run == run)
    well = Counter((asked.image, asked.run) for asked in judge.asked if asked.kind == "well")
    assert set(well.values()) == {1}
    # An answer that was on its way to the client when it was killed is not stored.
    again = sum(count - 1 for count in Counter(image for image, _ in well).values())
    assert again <= KILLS * CONCURRENCY


def test_every_fault_was_met_and_a_limit_was_kept(finished) -> None:
    judge, _, known = finished
    assert {asked.kind for asked in judge.asked} == {"well", *ONCE, *ALWAYS}
    assert [len(before) for before in known] == sorted(len(before) for before in known)
    assert len(known[1]) > 0 and len(known[-1]) < COUNT
    waited = 0
    for first in judge.asked:
        if first.kind == "limit":
            later = [other for other in judge.asked if other.image == first.image and other is not first]
            if later[0].run == first.run:
                waited += 1
                assert later[0].time - first.time >= RETRY_AFTER
    assert waited > 0

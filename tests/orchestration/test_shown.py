"""What a person reads before each stage: its place, its name in words, and a time where there is a ground for one."""

import io

import pytest

from chunk_grpo.orchestration.shown import Shown, label

NEEDS = {
    "inputs": [],
    "prepare": [],
    "train@chunk-ws-0": ["prepare"],
    "train@chunk-ws-1": ["prepare"],
    "train@dance-0": ["prepare"],
    "other": [],
    "report": ["train@chunk-ws-0", "train@chunk-ws-1", "train@dance-0"],
}


def shown(**earlier: float) -> tuple[Shown, io.StringIO]:
    screen = io.StringIO()
    watch = Shown(screen, earlier)
    watch.plan(NEEDS)
    return watch, screen


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("train@chunk-ws-1", "train chunk-ws seed 1"),
        ("generate@a-10", "generate a seed 10"),
        ("score@chunk-ws-shapes-exact", "score chunk-ws-shapes-exact"),
        ("encode_training@0", "encode_training 0"),
        ("report", "report"),
    ],
)
def test_label(name: str, words: str) -> None:
    assert label(name) == words


def test_without_a_ground_there_is_no_time() -> None:
    watch, screen = shown()
    watch.begin("train@chunk-ws-0")
    assert screen.getvalue() == "stage 3 of 7: train chunk-ws seed 0\n"


def test_a_stage_takes_as_long_as_the_last_of_its_variant_then_of_its_kind() -> None:
    watch, screen = shown()
    watch.begin("train@chunk-ws-0")
    watch.end("train@chunk-ws-0", 300)
    watch.begin("train@chunk-ws-1")  # report, which is due, was never timed
    watch.end("train@chunk-ws-1", 360)
    watch.begin("train@dance-0")
    assert screen.getvalue().splitlines()[1:] == [
        "stage 4 of 7: train chunk-ws seed 1 (about 5 min)",
        "stage 5 of 7: train dance seed 0 (about 6 min)",
    ]


def test_what_is_left_counts_the_stages_that_need_one_that_ran() -> None:
    """300 + 60 s: `other` and the trainings need nothing that ran, so they may be up to date."""
    earlier = {"train@chunk-ws-1": 300.0, "train@dance-0": 9000.0, "other": 9000.0, "report": 60.0}
    watch, screen = shown(**earlier)
    watch.begin("train@chunk-ws-1")
    assert screen.getvalue() == "stage 4 of 7: train chunk-ws seed 1 (about 6 min left)\n"
    watch.begin("report")
    assert screen.getvalue().endswith("stage 7 of 7: report (about 1 min left)\n")


def test_what_changes_nothing_yet_tells_nothing_of_the_rest() -> None:
    watch, screen = shown(inputs=20.0, report=60.0)
    watch.begin("inputs")
    assert screen.getvalue() == "stage 1 of 7: inputs (about 20 s)\n"


def test_all_that_needs_the_first_stage_is_due() -> None:
    """10 + 2 * 300 + 9000 + 60 s."""
    earlier = {"prepare": 10.0, "train@chunk-ws-0": 300.0, "train@chunk-ws-1": 300.0}
    watch, screen = shown(**earlier, **{"train@dance-0": 9000.0, "report": 60.0})
    watch.begin("prepare")
    assert screen.getvalue() == "stage 2 of 7: prepare (about 2.7 h left)\n"

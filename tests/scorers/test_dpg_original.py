"""DPG-Bench's prompts and values beside the original evaluator's own functions, on random questions and answers."""

import csv
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from PIL import Image

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.config.questions import parse_questions
from chunk_grpo.prompts.dpg import read_dpg
from chunk_grpo.scorers.judging.questions import image_value
from tests.prompts.test_dpg import HEADER
from tests.scorers.originals.geneval import run_file, stand_in

pytestmark = pytest.mark.network

COMMIT = "3c228f1dc6c4d3cad0a47493816151a419f14db3"
ITEMS, IMAGES, SIDE = 200, 4, 2
KIND = ("entity", "whole", "entity - whole (x)")


@pytest.fixture(scope="module")
def evaluator() -> Any:
    """compute_dpg_bench.py, with the standard library's reader of CSV for pandas."""
    path = Path(os.environ.get("ELLA_SOURCE", ""), "dpg_bench", "compute_dpg_bench.py")
    if not path.is_file():
        pytest.fail(
            "set ELLA_SOURCE to a clone of ELLA: `git clone https://github.com/TencentQQGYLab/ELLA` (compared with "
            f"commit {COMMIT}); {str(path)!r} is no file"
        )
    modules = {
        "pandas": stand_in("pandas", read_csv=lambda path: SimpleNamespace(iterrows=lambda: table_rows(path))),
        "accelerate": stand_in("accelerate", Accelerator=None),
        "accelerate__utils": stand_in("accelerate.utils", gather_object=None),
        "tqdm": stand_in("tqdm", tqdm=None),
    }
    return run_file(path, **modules)


def table_rows(path: str) -> Iterator[tuple[int, SimpleNamespace]]:
    with Path(path).open(newline="", encoding="utf-8") as stream:
        for number, row in enumerate(csv.DictReader(stream)):
            yield number, SimpleNamespace(**row)


def random_items(rng: Generator) -> list[list[Any]]:
    """Rows of ITEMS prompts; in every other one, parents may follow their children."""
    rows = []
    for item in range(ITEMS):
        ids = list(range(1, int(rng.integers(1, 14)) + 1))
        if item % 2:
            rng.shuffle(ids)
        for number in ids:
            others = [other for other in ids if (other < number if item % 2 == 0 else other != number)]
            parents = rng.permutation(others)[: int(rng.integers(0, 3))] if others else []
            dependency = ", ".join(map(str, parents)) or "0"
            question = f"Is {item}, {number} there?"
            rows.append([f"item{item}", f"prompt {item}", "", number, dependency, *KIND, question])
    return rows


class Judge:
    """Answers by the crop's colour, which is its number, and the question."""

    def __init__(self, answers: Mapping[tuple[int, str], str]) -> None:
        self.answers = answers

    def vqa(self, image: Image.Image, question: str) -> str:
        return self.answers[int(np.asarray(image)[0, 0, 0]), question]


def test_values_are_the_evaluators(evaluator: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "dpg_bench.csv"
    first = ["skipped", "the evaluator leaves it out", "", 1, "0", *KIND, "Is it?"]
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([HEADER.split(","), first, *random_items(rng)])
    arguments = SimpleNamespace(csv=str(path), pic_num=IMAGES, res_path=str(tmp_path / "results.txt"))
    listed = evaluator.prepare_dpg_data(arguments)
    ours = {row.metadata["item_id"]: row for row in read_dpg(path, PromptChecks()).rows}
    assert set(ours) - {"skipped"} == set(listed)
    values = []
    for item, row in ours.items():
        if item == "skipped":
            continue
        questions = parse_questions(row.metadata)
        assert {one.id: one.text for one in questions} == listed[item]["qid2question"]
        drawn = {
            (image, one.text): "yes" if rng.random() < 0.7 else "no" for image in range(IMAGES) for one in questions
        }
        grid = np.kron(np.arange(IMAGES).reshape(2, 2), np.ones((SIDE, SIDE)))
        Image.fromarray(grid.astype(np.uint8)).convert("RGB").save(tmp_path / f"{item}.png")
        theirs, *_ = evaluator.compute_dpg_one_sample(
            arguments, listed, str(tmp_path / f"{item}.png"), Judge(drawn), SIDE
        )
        each = [
            image_value(questions, [drawn[image, one.text] == "yes" for one in questions]) for image in range(IMAGES)
        ]
        assert np.mean(each) == pytest.approx(theirs, abs=1e-12)
        values.append(theirs)
    assert len(set(values)) > 50

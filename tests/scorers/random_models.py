"""Every scorer's model, small and random but in the real file format, and a judge for WISE that answers at random.

    python -m tests.scorers.random_models data/random-models

writes them into the folder and answers at port 8910 until Ctrl-C: what the preset `random-scorers` asks for.
"""

from __future__ import annotations

import argparse
import csv
import json
import threading
from pathlib import Path

from tests.scorers.checkpoints_aesthetic import make_aesthetic
from tests.scorers.checkpoints_clip import make_clip
from tests.scorers.checkpoints_geneval import make_geneval
from tests.scorers.checkpoints_hpsv2 import make_hpsv2
from tests.scorers.checkpoints_hpsv3 import make_hpsv3
from tests.scorers.checkpoints_imagereward import make_imagereward
from tests.scorers.judge_server import JudgeServer

QUESTIONS = (
    (1, "Cultural knowledge", "The fruit that is carved for Halloween", "A pumpkin with a face."),
    (2, "Cultural knowledge", "The flower that the Netherlands are known for", "Tulips."),
    (401, "time", "A tree three weeks before winter", "Few leaves, in brown and yellow."),
)

SIGNS = "prompt,text\na sign that says OPEN,OPEN\na red door with the number 12,12\n"


PROPOSITIONS = (
    ("cups", "A red cup stands to the left of a dog.", 1, "0", "Is there a cup?"),
    ("cups", "A red cup stands to the left of a dog.", 2, "1", "Is the cup red?"),
    ("cups", "A red cup stands to the left of a dog.", 3, "0", "Is there a dog?"),
    ("sea", "The sea at night, under a full moon.", 1, "0", "Is there a sea?"),
    ("sea", "The sea at night, under a full moon.", 2, "1", "Is it night?"),
)


def make_models(folder: Path) -> None:
    """All models, and files of prompts: of the forms of WISE and DPG-Bench, and with texts to be shown."""
    make_clip(folder / "clip")
    make_imagereward(folder / "imagereward")
    make_aesthetic(folder / "aesthetic")
    make_hpsv2(folder / "hpsv2")
    make_hpsv3(folder / "hpsv3")
    make_geneval(folder / "geneval")
    keys = ("prompt_id", "Category", "Prompt", "Explanation")
    records = [{**dict(zip(keys, row, strict=True)), "Subcategory": ""} for row in QUESTIONS]
    (folder / "wise.json").write_text(json.dumps(records))
    with (folder / "dpg_bench.csv").open("w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(("item_id", "text", "proposition_id", "dependency", "tuple", "question_natural_language"))
        table.writerows((*row[:4], "entity - whole (x)", row[4]) for row in PROPOSITIONS)
    (folder / "signs.csv").write_text(SIGNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8910)
    arguments = parser.parse_args()
    make_models(arguments.folder)
    with JudgeServer(port=arguments.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()

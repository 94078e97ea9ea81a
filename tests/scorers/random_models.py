"""Every scorer's model, small and random but in the real file format, and a judge for WISE that answers at random.

    python -m tests.scorers.random_models data/random-models

writes them into the folder and answers at port 8910 until Ctrl-C: what the preset `random-scorers` asks for.
"""

from __future__ import annotations

import argparse
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


def make_models(folder: Path) -> None:
    """All models, a file of prompts in WISE's form, and one with texts to be shown, below a folder."""
    make_clip(folder / "clip")
    make_imagereward(folder / "imagereward")
    make_aesthetic(folder / "aesthetic")
    make_hpsv2(folder / "hpsv2")
    make_hpsv3(folder / "hpsv3")
    make_geneval(folder / "geneval")
    keys = ("prompt_id", "Category", "Prompt", "Explanation")
    records = [{**dict(zip(keys, row, strict=True)), "Subcategory": ""} for row in QUESTIONS]
    (folder / "wise.json").write_text(json.dumps(records))
    (folder / "signs.csv").write_text(SIGNS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8910)
    arguments = parser.parse_args()
    make_models(arguments.folder)
    with JudgeServer(port=arguments.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()

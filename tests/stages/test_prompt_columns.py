"""Columns of a prompt file reach a reward: the documented scorer trains and evaluates on them, here and at a server."""

import numpy as np
import pytest

from chunk_grpo.artifacts import read_table
from chunk_grpo.image_files import decode_image
from tests.conftest import Workspace, any_prompt, prompt_file
from tests.docs.blocks import BLOCKS
from tests.scorers.servers import ServerProcess

COLOURS = {"red": "255,0,0", "green": "0,255,0", "blue": "0,0,255", "white": "255,255,255"}
(CODE,) = (block.text for block in BLOCKS if block.text.startswith("# my_colours.py"))
KEY = "closeness"
SCORER = {
    "kind": "external",
    "source": f"my_colours:{KEY}",
    "version": 1,
    "options": {},
    "splits": ["eval"],
    "batch_size": 8,
}


@pytest.fixture
def made(workspace: Workspace) -> Workspace:
    """The preset smoke with a file of prompts whose column `text` the documented scorer reads; the plans stay."""
    rows = [f'a {name} wall {number},"{text}"' for number in range(6) for name, text in COLOURS.items()]
    (workspace.root / "prompts.csv").write_text("\n".join(["prompt,text", *rows]))
    (workspace.root / "my_colours.py").write_text(CODE)
    given = {"source": "file", "train_file": prompt_file("prompts.csv"), "wise_count": 0, "eval_count": 8}
    workspace.edit(any_prompt)
    workspace.edit(lambda raw: raw["prompts"].update(given))
    workspace.edit(lambda raw: raw.update(scorers={KEY: SCORER}, rewards={KEY: 1.0}))
    return Workspace(workspace.root, scorer=KEY)


def test_a_reward_reads_a_column_here_and_at_a_server(made: Workspace) -> None:
    stages = ("encode_prompts@evaluation", "encode_training", "train", "generate_base", "score_base")
    for stage in ("inputs", "prepare_prompts", "check_scorers", *stages):
        assert made.run(stage) == 0, stage
    prompts = {
        row["prompt_id"]: row["prompt"]
        for row in read_table(str(made.artifacts / "prompts/evaluation.parquet"), "prompts").to_pylist()
    }
    images = {
        (row["prompt_id"], row["sample"]): decode_image(row["image"]["bytes"], "image")
        for row in read_table(made.images("base"), "images").to_pylist()
    }
    scores = read_table(str(made.artifacts / f"scores/base/{KEY}.parquet"), "scores").to_pylist()
    assert len(scores) == 8
    for row in scores:
        wanted = [int(part) for part in COLOURS[prompts[row["prompt_id"]].split()[1]].split(",")]
        mean = images[row["prompt_id"], row["sample"]].mean(axis=(0, 1))
        assert row["value"] == pytest.approx(1 - np.abs(mean - wanted).mean() / 255)
    metrics = made.artifacts / f"train/{made.variant}/seed-0/metrics.parquet"
    rewards = [
        r["value"] for r in read_table(str(metrics), "train_metrics").to_pylist() if r["metric"] == "reward_mean"
    ]
    assert rewards
    assert all(0 < value < 1 for value in rewards)
    here = made.files()
    with ServerProcess(made.root / "params.yaml", KEY, PYTHONPATH=str(made.root)) as server:
        executor = {"kind": "http", "url": server.url, "token_variable": None, "timeout_seconds": 30.0}
        made.edit(lambda raw: raw["executors"].update({KEY: executor}))
        for stage in ("check_scorers", "train", "score_base"):
            assert made.run(stage) == 0, stage
    changed = {name for name, content in made.files().items() if content != here[name]}
    assert {name.split("/")[0] for name in changed} <= {"runs", "timings"}

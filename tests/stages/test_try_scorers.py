"""Every scorer judges a few images before any long work."""

import json
from typing import Any

import pytest
from ruamel.yaml import YAML

from chunk_grpo.artifacts import read_table
from tests.conftest import ROOT, Workspace
from tests.stages.own_scorers import add_judge, calls, check, do, ended

RECORDING = '''
import json
from pathlib import Path


def judge(images, prompts, metadata):
    """Notes shape, prompts and metadata of each call."""
    with Path("calls").open("a") as stream:
        stream.write(json.dumps([list(images.shape), list(prompts), list(metadata)]) + "\\n")
    return images.mean(axis=(1, 2, 3)) / 255


class Best:
    groupwise = True

    def score(self, images, prompts, metadata, groups):
        Path("groups").write_text(json.dumps([int(group) for group in groups]))
        return images.mean(axis=(1, 2, 3)) / 255
'''


def tried(workspace: Workspace) -> tuple[int, str]:
    """Exit code and words of the stage."""
    return ended(workspace, "try_scorers")


def recorded(workspace: Workspace) -> list[Any]:
    return [json.loads(line) for line in (workspace.root / "calls").read_text().splitlines()]


def test_the_log_has_times_and_numbers_of_images(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers of smoke: tests/planning/test_images.py."""
    assert workspace.run("try_scorers") == 0
    lines = [line.split("│") for line in capsys.readouterr().err.splitlines() if "shapes-" in line]
    cells = {cell[1].strip(): [each.strip() for each in cell[2:-1]] for cell in lines}
    assert list(cells) == ["shapes-exact", "shapes-graded", "shapes-vivid"]
    assert [row[2:4] for row in cells.values()] == [["12", "60"], ["44", "60"], ["44", "60"]]
    assert all(row[0].endswith(" s") and row[1].endswith(" s") and row[4] for row in cells.values())


def test_the_output_is_the_same_after_every_trial(workspace: Workspace) -> None:
    """So what waits for it does not run again."""
    path = workspace.artifacts / "specs" / "tried.json"
    before = path.read_bytes()
    for images in (3, 0):
        workspace.edit(lambda raw, images=images: raw["trial"].update(images=images))
        path.unlink()
        assert workspace.run("try_scorers") == 0
        assert path.read_bytes() == before


def test_a_scorer_gets_prompts_and_metadata_of_its_splits_at_the_size_of_the_run(workspace: Workspace) -> None:
    """As a reward it gets train prompts too."""
    things = {"kind": "coco", "count": 6, "seed": 0}
    workspace.edit(lambda raw: raw["prompts"]["benchmarks"].update(things=things))
    workspace.edit(lambda raw: raw["rewards"].update(own=1.0))
    workspace.edit(lambda raw: raw["generate"].update(height=40))
    add_judge(workspace, code=RECORDING, splits=["eval", "things"])
    assert workspace.run("prepare_prompts") == 0
    code, errors = tried(workspace)
    assert code == 0, errors
    found = recorded(workspace)
    assert [shape for shape, _, _ in found] == [[1, 32, 32, 3], [1, 32, 32, 3], [2, 40, 32, 3], [2, 40, 32, 3]]
    of_things = found[-1][2]
    assert [record["tag"] for record in of_things] == ["single_object", "colors"]
    assert len({prompt for _, prompts, _ in found for prompt in prompts}) == 6


def test_a_heldout_scorer_gets_no_train_prompts(workspace: Workspace) -> None:
    """Training measures it on eval prompts; the file of the train prompts may lack its metadata."""
    workspace.edit(lambda raw: raw["train"]["heldout"].update(scorers=["own"]))
    add_judge(workspace, code=RECORDING, splits=["eval"])
    code, errors = tried(workspace)
    assert code == 0, errors
    prompts = read_table(str(workspace.artifacts / "prompts" / "evaluation.parquet"), "prompts").to_pylist()
    evaluated = [row["prompt"] for row in prompts if row["split"] == "eval"]
    assert [seen for _, seen, _ in recorded(workspace)] == [[evaluated[0]], [evaluated[len(evaluated) // 2]]]


def test_no_trial(workspace: Workspace) -> None:
    add_judge(workspace)
    do(workspace, "key")
    workspace.edit(lambda raw: raw["trial"].update(images=0))
    code, errors = tried(workspace)
    assert (code, errors) == (0, "")
    assert calls(workspace) == []


@pytest.mark.parametrize(
    ("fault", "exit_code", "message"),
    [
        ("key", 3, "error: scorers.own: own_rewards:judge raised KeyError: "),
        ("timeout", 75, "after 3 attempts; the last failed with ReadTimeout"),
    ],
)
def test_a_fault_ends_the_stage_as_it_would_end_scoring(
    fault: str, exit_code: int, message: str, workspace: Workspace
) -> None:
    add_judge(workspace)
    do(workspace, fault)
    output = workspace.artifacts / "specs" / "tried.json"
    output.unlink()
    code, errors = tried(workspace)
    assert code == exit_code, errors
    assert message in errors
    assert "scorer own: failed in its trial, in the split eval, with the prompt '" in errors
    assert not output.exists()


def test_unreachable_server_exits_75(workspace: Workspace) -> None:
    """It went after check_scorers."""
    add_judge(workspace)
    server = {"kind": "http", "url": "http://127.0.0.1:9", "token_variable": None, "timeout_seconds": 1.0}
    workspace.edit(lambda raw: raw["executors"].update(own=server))
    code, errors = tried(workspace)
    assert (code, "Traceback" in errors) == (75, False), errors
    assert "http://127.0.0.1:9" in errors


def test_a_groupwise_scorer_gets_groups_and_is_refused_as_a_reward(workspace: Workspace) -> None:
    workspace.edit(lambda raw: raw["generate"].update(images_per_prompt=3))
    add_judge(workspace, code=RECORDING, source="own_rewards:Best")
    code, errors = tried(workspace)
    assert code == 0, errors
    assert json.loads((workspace.root / "groups").read_text()) == [1, 1, 1]
    workspace.edit(lambda raw: raw["rewards"].update(own=1.0))
    check(workspace)
    code, errors = tried(workspace)
    assert code == 2, errors
    assert "rewards.own: this scorer compares the images of a prompt" in errors


def test_all_stages_that_encode_prompts_wait() -> None:
    """Whatever else takes long needs embeddings."""
    stages = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]
    definitions = {name: stage.get("do", stage) for name, stage in stages.items()}
    encoding = {name for name, stage in definitions.items() if "stages.encode_prompts" in stage["cmd"]}
    waiting = {n for n, stage in definitions.items() if "artifacts/specs/tried.json" in stage.get("deps", [])}
    assert waiting == encoding != set()

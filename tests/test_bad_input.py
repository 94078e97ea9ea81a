"""Bad input: a message and the right exit code at once, and nothing is lost.

Every case runs a stage with the options of dvc.yaml, in a folder where all stages ran before. That a fault is found
before any long work is shown by a second fault: params.yaml also names a checkpoint that is not there, and loading the
model, which comes first in all long work, would tell that one. Every rule and message of a kind of fault is tested
beside its code: tests/test_config.py, tests/test_variants_config.py, tests/prompts, tests/families, tests/artifacts.
"""

import io
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import CHECKPOINT, Workspace, any_prompt, prompt_file
from tests.params_edits import Edit, put
from tests.small_files import small_files

CONFIGURATION, DATA = 2, 3
NO_MODEL = "nowhere/at/all"


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    """Any attempt to load the model would end with another message than the one that is expected."""
    workspace.edit(put("model.checkpoint", NO_MODEL))
    return workspace


def refused(workspace: Workspace, stage: str, code: int, **changes: str) -> str:
    """The message with which a stage ends; the checks that every case shares."""
    before = workspace.files()
    run = workspace.run_as_recorded if stage == "train" else workspace.run  # records need the model
    with redirect_stderr(io.StringIO()) as stderr:
        status = run(stage, **changes)
    errors = stderr.getvalue()
    message = errors[errors.find("error: ") :].rstrip("\n")  # after lines of progress, if there were any
    assert status == code, errors
    assert "Traceback" not in errors
    assert NO_MODEL not in message or stage.startswith("encode_prompts"), (
        "the model was to be loaded before this was found"
    )
    assert workspace.files() == before, "something that existed was lost or changed"
    assert message.startswith("error: "), errors
    return message.removeprefix("error: ")


def edits(*changes: Edit) -> Edit:
    """Several edits of params.yaml."""
    return lambda raw: [change(raw) for change in changes]


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (put("generate.base_stesp", 4), "generate.base_stesp: unknown key; did you mean 'base_steps'?"),
        (put("chunks.plans.listed.sizes", [2, 3, 4, 8]), "chunks.plans.listed.sizes: must sum to "),
    ],
    ids=["misspelt key", "sum of chunk sizes"],
)
def test_configuration(edit: Edit, problem: str, workspace: Workspace) -> None:
    """The first stage already refuses what a later one would stumble over."""
    workspace.edit(edit)
    said = refused(workspace, "prepare_prompts", CONFIGURATION)
    assert said.startswith(f"params.yaml: {problem}")
    assert said.endswith(" conf/preset/tiny.yaml describes every key.")
    assert "\n" not in said


def test_variant_option(workspace: Workspace) -> None:
    assert refused(workspace, "train", CONFIGURATION, variant="chunky") == (
        "--variant: must be a name in variants (dance, chunk-ws), got 'chunky'"
    )


FROM_FILE = edits(
    put("prompts.source", "file"),
    put("prompts.train_file", prompt_file("prompts.txt")),
    put("prompts.wise_count", 0),
    any_prompt,
)


def test_prompt_file(workspace: Workspace) -> None:
    workspace.edit(FROM_FILE)
    workspace.edit(put("model.checkpoint", str(CHECKPOINT)))  # `inputs` looks for it first
    (workspace.root / "prompts.txt").write_bytes("a dog\nein W\xfcrfel\n".encode("latin-1"))
    assert workspace.run("inputs") == 0
    assert refused(workspace, "prepare_prompts", DATA).startswith("prompts.txt, line 2: must be UTF-8, got")


def test_checkpoint(workspace: Workspace, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(CHECKPOINT, model)
    path = model / "text_encoder_2" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    workspace.edit(put("model.checkpoint", str(model)))
    assert refused(workspace, "inputs", DATA).startswith(f"{path}: cut off or damaged (")


PROFILE = "artifacts/profile/l1_profile.parquet"


def test_table(workspace: Workspace) -> None:
    (workspace.root / PROFILE).write_bytes((workspace.root / PROFILE).read_bytes()[:-100])
    message = refused(workspace, "chunk_boundaries", DATA)
    assert message.startswith(f"{PROFILE}: corrupt, cut off, or no Parquet file (")


def change_row(path: Path, number: int, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Write a table anew with one row changed; that row."""
    table = pq.read_table(path)
    records = table.to_pylist()
    change(records[number])
    pq.write_table(pa.Table.from_pylist(records, schema=table.schema), path)
    return dict(records[number])


def test_a_picture_that_is_damaged(workspace: Workspace) -> None:
    path = workspace.artifacts / "images" / "base" / "images.parquet"
    row = change_row(path, 3, lambda row: row["image"].update(bytes=row["image"]["bytes"][:40]))
    message = refused(workspace, "score_base", DATA)
    assert message.startswith(f"image {row['image']['path']}: must be a PNG, ")


def test_embeddings_of_other_prompts(workspace: Workspace) -> None:
    """The same names for other texts, as after a change of prompts.seed without encoding again."""
    path = workspace.artifacts / "prompts" / "scheduled" / "profile.parquet"
    change_row(path, 0, lambda row: row.update(prompt="a dog"))
    assert refused(workspace, "profile_l1", DATA) == (
        "artifacts/embeddings/profile: must hold the prompts of artifacts/prompts/scheduled/profile.parquet that "
        "this stage uses, got no row for 'train-00000', 'a dog'; run `dvc repro`"
    )


def test_unwritable_output(workspace: Workspace) -> None:
    """A file where a folder should be: no user, not even root, can write below it."""
    (workspace.root / "full").write_text("mine")
    message = refused(workspace, "generate_base", DATA, out="full/images/base")
    assert message == "full/images/base: cannot write: Not a directory."
    assert (workspace.root / "full").read_text() == "mine"


@pytest.mark.usefixtures("no_credentials")
def test_missing_s3_credentials(workspace: Workspace) -> None:
    message = refused(workspace, "score_base", DATA, out="s3://nobody/scores.parquet")
    assert message.startswith("s3://nobody/scores.parquet: cannot write: no S3 credentials (Unable to locate")


def test_no_space_left(workspace: Workspace) -> None:
    """There is room for the first probe, and none for the pictures; the older result stays."""
    workspace.edit(put("model.checkpoint", str(CHECKPOINT)))
    with small_files():
        message = refused(workspace, "generate_base", DATA)
    assert message.startswith("artifacts/images/base/images.parquet: cannot write: ")
    assert "File too large" in message

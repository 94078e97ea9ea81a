"""What a user gets for bad input: a message, the right exit code, at once, and nothing lost.

Every case runs `python -m stages.NAME` as dvc.yaml writes it, in a folder where all stages ran before. That a fault is
found before any long work is shown by a second fault: params.yaml also names a checkpoint that is not there, and
loading the model, which comes first in all long work, would tell that one.

| case | here, as a process | every rule and message of it |
| --- | --- | --- |
| unknown or misspelt key | test_configuration[misspelt key], [unknown key] | tests/test_config.py |
| wrong type | test_configuration[wrong type] | tests/test_config.py |
| sum of chunk sizes wrong | test_configuration[sum of chunk sizes] | tests/test_config.py |
| fraction out of range | test_configuration[fraction] | tests/test_config.py |
| group size 1 | test_configuration[group size] | tests/test_config.py |
| settings of a variant that do not fit | test_configuration[variant] | tests/test_variants_config.py |
| a variant name used twice | test_a_variant_name_used_twice | tests/test_config.py |
| unknown scorer | test_configuration[scorer] | tests/test_config.py, tests/scorers |
| empty prompt file | test_prompt_file[empty] |  |
| non-UTF-8 prompts | test_prompt_file[not UTF-8] | tests/test_config.py for params.yaml |
| missing or half-downloaded checkpoint | test_checkpoint[missing], [half] | tests/families/test_checkpoint.py |
| a checkpoint of another family | test_checkpoint[another family] | tests/families/test_checkpoint.py |
| corrupt or foreign Parquet | test_table[corrupt], [foreign], [another table] | tests/artifacts/test_tables.py |
| schema of an older version | test_table[older version] | tests/artifacts/test_tables.py |
| unwritable output | test_unwritable_output | tests/artifacts/test_storage.py |
| missing S3 credentials | test_missing_s3_credentials | tests/artifacts/test_storage.py |
| no space left | test_no_space_left | tests/artifacts/test_storage.py |
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunk_grpo.artifacts.schemas import SCHEMA_KEY, VERSION_KEY
from tests.conftest import CHECKPOINT, Workspace, any_prompt, prompt_file

CONFIGURATION, DATA = 2, 3
NO_MODEL = "nowhere/at/all"
Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    """Any attempt to load the model would end with another message than the one that is expected."""
    workspace.edit(lambda raw: raw["model"].update(checkpoint=NO_MODEL))
    return workspace


def refused(workspace: Workspace, stage: str, code: int, *prefix: str, **changes: str) -> str:
    """The message with which a stage ends; the checks that every case shares."""
    before = workspace.files()
    with workspace.process(stage, *prefix, **changes) as process:
        _, errors = process.communicate(timeout=120)
    message = errors[errors.find("error: ") :].rstrip("\n")  # after lines of progress, if there were any
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert NO_MODEL not in message or stage.startswith("encode_prompts"), (
        "the model was to be loaded before this was found"
    )
    assert workspace.files() == before, "something that existed was lost or changed"
    assert message.startswith("error: "), errors
    return message.removeprefix("error: ")


def edits(**values: Any) -> Edit:
    """An edit of params.yaml; a double underscore stands for the dot of a path."""

    def edit(raw: dict[str, Any]) -> None:
        for path, value in values.items():
            *parents, key = path.split("__")
            section = raw
            for parent in parents:
                section = section[parent]
            section[key] = value

    return edit


LISTED = "chunks.plans.listed.sizes: must sum to sampling.num_steps - 1 = 16 (the last step carries no noise and is not"


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        pytest.param(
            edits(generate__base_stesp=4),
            "generate.base_stesp: unknown key; did you mean 'base_steps'?",
            id="misspelt key",
        ),
        pytest.param(
            edits(encode__xyz=1), "encode.xyz: unknown key; known here: batch_size", id="unknown key"
        ),
        pytest.param(
            edits(train__group_size="8"), "train.group_size: must be a whole number, got '8'", id="wrong type"
        ),
        pytest.param(
            edits(chunks__plans__listed__sizes=[2, 3, 4, 8]),
            f"{LISTED} trained), got [2, 3, 4, 8], which sums to 17",
            id="sum of chunk sizes",
        ),
        pytest.param(edits(train__fraction=1.5), "train.fraction: must be <= 1, got 1.5", id="fraction"),
        pytest.param(edits(train__group_size=1), "train.group_size: must be >= 2, got 1", id="group size"),
        pytest.param(
            edits(rewards={"shapes-grade": 1.0}),
            "rewards.shapes-grade: must be a name in scorers, got 'shapes-grade'; did you mean 'shapes-graded'? "
            "there are: shapes-exact, shapes-graded, shapes-vivid",
            id="scorer",
        ),
        pytest.param(
            edits(variants__dance__window={"num_steps": 17, "stride": 1, "every": 25}),
            "variants.dance.window.num_steps: must be <= sampling.num_steps - 1 = 16 (the last step carries no noise), "
            "got 17",
            id="variant",
        ),
    ],
)
def test_configuration(edit: Edit, problem: str, workspace: Workspace) -> None:
    """The first stage already refuses what a later one would stumble over."""
    workspace.edit(edit)
    assert refused(workspace, "prepare_prompts", CONFIGURATION) == (
        f"params.yaml: 1 problem\n  {problem}\nconf/preset/tiny.yaml describes every key."
    )


def test_a_variant_name_used_twice(workspace: Workspace) -> None:
    path = workspace.root / "params.yaml"
    text = path.read_text()
    path.write_text(text + "variants2:\n  chunk-ws: {plan: listed}\n  chunk-ws: {plan: step}\n")
    line = len(path.read_text().splitlines())
    assert refused(workspace, "prepare_prompts", CONFIGURATION) == (
        f"params.yaml, line {line}: the key 'chunk-ws' appears twice in one mapping; the second would silently "
        "replace the first. Rename or remove one."
    )


def test_variant_option(workspace: Workspace) -> None:
    assert refused(workspace, "train", CONFIGURATION, variant="chunky") == (
        "--variant: must be a name in variants (dance, chunk-ws), got 'chunky'"
    )


def from_file(raw: dict[str, Any]) -> None:
    edits(prompts__source="file", prompts__train_file=prompt_file("prompts.txt"), prompts__wise_count=0)(raw)
    any_prompt(raw)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "prompts.txt: must hold prompts, got none at all. Check the path.", id="empty"),
        pytest.param(
            b"a dog\n\n a cat\n\n",
            "prompts.txt: 2 problems (empty: 2)\n  line 2: an empty prompt\n  line 4: an empty prompt\n"
            "Fix the file, or a copy of it, or set `prompts.checks.empty: drop`.",
            id="empty line",
        ),
        pytest.param(
            "a dog\nein W\xfcrfel\n".encode("latin-1"),
            "prompts.txt, line 2: must be UTF-8, got the byte 0xfc. Save the file as UTF-8.",
            id="not UTF-8",
        ),
        pytest.param(
            b"a dog\na cat\n",
            "prompts.txt: must hold prompts.train_count + prompts.eval_count = 24 prompts, got 2; "
            "lower the counts or add prompts",
            id="short",
        ),
        pytest.param(
            None,
            "prompts.txt: no such file. Fix the path; for a data set on the hub, set `hub_file` as well.",
            id="missing",
        ),
    ],
)
def test_prompt_file(content: bytes | None, message: str, workspace: Workspace) -> None:
    workspace.edit(from_file)
    if content is not None:
        (workspace.root / "prompts.txt").write_bytes(content)
    assert refused(workspace, "prepare_prompts", DATA) == message


def half(model: Path) -> None:
    path = model / "text_encoder_2" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def of_another_family(model: Path) -> None:
    path = model / "model_index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index | {"_class_name": "StableDiffusion3Pipeline"}))


@pytest.mark.parametrize(
    ("damage", "beginning", "end"),
    [
        pytest.param(
            shutil.rmtree,
            "model.checkpoint: the folder {model} does not exist. Give a folder in the diffusers layout",
            "the toy checkpoint is assets/tiny-flux (git checkout assets).",
            id="missing",
        ),
        pytest.param(
            half,
            "{model}/text_encoder_2/model.safetensors: cut off or damaged (",
            "download the checkpoint again (an interrupted download leaves such gaps)",
            id="half",
        ),
        pytest.param(
            of_another_family,
            "{model}/model_index.json: _class_name must be FluxPipeline for this family, "
            "got StableDiffusion3Pipeline.",
            "Set model.family to the family of the checkpoint, or choose another checkpoint.",
            id="another family",
        ),
    ],
)
def test_checkpoint(
    damage: Callable[[Path], object], beginning: str, end: str, workspace: Workspace, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(CHECKPOINT, model)
    damage(model)
    workspace.edit(edits(model__checkpoint=str(model)))
    assert workspace.run("inputs") == 0
    message = refused(workspace, "encode_prompts@training", DATA)
    assert message.startswith(beginning.format(model=model))
    assert message.endswith(end)


def corrupt(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def foreign(path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a dog"]}), path)


def another_table(path: Path) -> None:
    shutil.copy(path.parents[1] / "chunks" / "listed.parquet", path)


def older(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: b"l1_profile", VERSION_KEY: b"0"}), path)


PROFILE = "artifacts/profile/l1_profile.parquet"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(
            Path.unlink, f"{PROFILE}: cannot read: no such file or directory. Run the stage", id="missing"
        ),
        pytest.param(corrupt, f"{PROFILE}: corrupt, cut off, or no Parquet file (", id="corrupt"),
        pytest.param(
            foreign,
            f"{PROFILE}: must be the table l1_profile/1, got a Parquet file that chunk-grpo did not write. Check",
            id="foreign",
        ),
        pytest.param(
            another_table,
            f"{PROFILE}: must be the table l1_profile/1, got the table chunk_plan. Check the path.",
            id="another table",
        ),
        pytest.param(
            older,
            f"{PROFILE}: must be the table l1_profile/1, got the older version 0. Delete it and run `dvc repro`",
            id="older version",
        ),
    ],
)
def test_table(damage: Callable[[Path], object], message: str, workspace: Workspace) -> None:
    damage(workspace.root / PROFILE)
    assert refused(workspace, "chunk_boundaries", DATA).startswith(message)


def test_a_picture_that_is_damaged(workspace: Workspace) -> None:
    path = workspace.artifacts / "images" / "base" / "images.parquet"
    table = pq.read_table(path)
    records = table.to_pylist()
    records[3]["image"]["bytes"] = records[3]["image"]["bytes"][:40]
    pq.write_table(pa.Table.from_pylist(records, schema=table.schema), path)
    message = refused(workspace, "score_base", DATA)
    assert message.startswith(f"image {records[3]['image']['path']}: not a readable picture (")


def test_embeddings_of_other_prompts(workspace: Workspace) -> None:
    """The same names for other texts, as after a change of prompts.seed without encoding again."""
    path = workspace.artifacts / "prompts" / "training.parquet"
    table = pq.read_table(path)
    records = table.to_pylist()
    records[0]["prompt"] = "a dog"
    pq.write_table(pa.Table.from_pylist(records, schema=table.schema), path)
    assert refused(workspace, "profile_l1", DATA) == (
        "artifacts/embeddings/training.parquet: must hold every prompt of artifacts/prompts/training.parquet, "
        "got no row for 'train-00000', 'a dog'; run `dvc repro`"
    )


def test_unwritable_output(workspace: Workspace) -> None:
    """A file where a folder should be: no user, not even root, can write below it."""
    (workspace.root / "full").write_text("mine")
    message = refused(workspace, "generate_base", DATA, out="full/images/base")
    assert message == "full/images/base: cannot write: Not a directory."
    assert (workspace.root / "full").read_text() == "mine"


def test_missing_s3_credentials(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    reason = (
        "no S3 credentials (Unable to locate credentials). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
    )
    message = refused(workspace, "chunk_boundaries", DATA, profile="s3://nobody/l1_profile.parquet")
    assert message.startswith(f"s3://nobody/l1_profile.parquet: cannot read: {reason}")
    message = refused(workspace, "score_base", DATA, out="s3://nobody/scores.parquet")
    assert message.startswith(f"s3://nobody/scores.parquet: cannot write: {reason}")


FULL_DISK = """
mount -t tmpfs -o size=12288 none disk && mkdir disk/images && printf older > disk/images/images.parquet || exit 99
"$@"
code=$?
[ "$(cat disk/images/images.parquet)$(ls -A disk/images)" = olderimages.parquet ] || echo LOST >&2
exit $code
"""
"""Runs a command with a disk of three blocks at disk/ that it alone sees; an older result lies on it."""


def full_disk() -> list[str] | None:
    """A wrapper that gives its process a full disk; None where this user may not mount."""
    for flags in (["-m"], ["-U", "-r", "-m"]):
        unshare = ["unshare", *flags, "sh", "-c"]
        test = [*unshare, "mount -t tmpfs none /mnt"]
        if shutil.which("unshare") and subprocess.run(test, capture_output=True, check=False).returncode == 0:
            return [*unshare, FULL_DISK, "sh"]
    return None


LIMIT = "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"
SMALL_FILES = [
    sys.executable,
    "-c",
    f"import os, resource, sys; {LIMIT}; os.execvp(sys.argv[1], sys.argv[1:])",
]
"""Lets its process write no file above 4 KiB: what comes nearest to a full disk without a mount."""


def test_no_space_left(workspace: Workspace) -> None:
    """There is room for the first probe, and none for the pictures; the older result stays."""
    (workspace.root / "disk").mkdir()
    workspace.edit(edits(model__checkpoint=str(CHECKPOINT)))
    wrapper = full_disk()
    if wrapper is not None:
        out, reason = (
            "disk/images",
            "no space left on the disk; nothing was changed. Make room and run again: ",
        )
    else:
        out, reason = "artifacts/images/base", "File too large."
    message = refused(workspace, "generate_base", DATA, *(wrapper or SMALL_FILES), out=out)
    assert message.startswith(f"{out}/images.parquet: cannot write: {reason}")

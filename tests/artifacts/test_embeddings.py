"""Embeddings in shards: what is written is read back by row, in bounded memory; damage is found at opening."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from chunk_grpo.artifacts import output_dir, read_table
from chunk_grpo.artifacts.embeddings import Embeddings, distinct_prompts, open_embeddings, write_embeddings
from chunk_grpo.errors import DataError
from tests.small_files import small_files

NAMES = ("prompt_embeds", "pooled")
PROMPTS = [("a", "one"), ("b", "two"), ("c", "one"), ("d", "three"), ("e", "four"), ("f", "five")]
TEXTS = ["one", "two", "three", "four", "five"]
ROW = 4 * 2 * 2 + 3 * 2
"""Bytes of a row."""


def row_of(text: str) -> dict[str, Tensor]:
    """The tensors of a text: [4, 2] and [3]."""
    stream = torch.Generator().manual_seed(TEXTS.index(text))
    return {
        "prompt_embeds": torch.randn(4, 2, generator=stream).bfloat16(),
        "pooled": torch.randn(3, generator=stream).bfloat16(),
    }


def batches(*sizes: int) -> Iterator[Mapping[str, Tensor]]:
    """The rows of all texts in batches of these sizes."""
    texts = iter(TEXTS)
    for size in sizes:
        rows = [row_of(next(texts)) for _ in range(size)]
        yield {name: torch.stack([row[name] for row in rows]) for name in NAMES}


def write(folder: Path, rows: int = 2, *sizes: int) -> Path:
    """Write shards of `rows` rows."""
    write_embeddings(PROMPTS, batches(*(sizes or (5,))), folder, shard_bytes=rows * ROW + 1)
    return folder


def assert_holds_all(opened: Embeddings) -> None:
    ids = [PROMPTS[at] for at in (4, 0, 2, 0, 5, 3)]  # any order, some twice, one text under two ids
    read = opened.read([opened.row_of[prompt] for prompt in ids])
    assert sorted(read) == sorted(NAMES)
    for at, (_, text) in enumerate(ids):
        for name, expected in row_of(text).items():
            assert read[name].dtype == torch.bfloat16
            assert torch.equal(read[name][at], expected)


@pytest.mark.parametrize("sizes", [(5,), (1, 1, 1, 1, 1), (2, 2, 1), (3, 2)])
@pytest.mark.parametrize(("rows", "shards"), [(1, 5), (2, 3), (3, 2), (5, 1), (100, 1), (0, 5)])
def test_rows_are_read_back_from_shards_of_bounded_size(
    rows: int, shards: int, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    folder = write(tmp_path / "training", rows, *sizes)
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["index.parquet", *(f"shard-{number:05d}.safetensors" for number in range(shards))]
    index = read_table(folder / "index.parquet", "embeddings").to_pylist()
    assert [(row["prompt_id"], row["prompt"]) for row in index] == PROMPTS
    with open_embeddings(folder) as opened:
        assert len(set(opened.row_of.values())) == len(distinct_prompts(PROMPTS)) == 5
        assert_holds_all(opened)


def test_a_negative_prompt_is_kept_beside_the_others(tmp_path: Path) -> None:
    negative = {"prompt_embeds": torch.ones(1, 4, 2), "pooled": torch.ones(1, 3)}
    folder = tmp_path / "training"
    write_embeddings(PROMPTS, batches(5), folder, negative=negative)
    with open_embeddings(folder) as opened:
        found = opened.negative()
        assert all(torch.equal(found[name], negative[name]) for name in negative)
        save_file({"pooled": torch.ones(1, 3)}, folder / "negative.safetensors")
        with pytest.raises(DataError, match=r"must hold the tensors pooled, prompt_embeds, got pooled\."):
            opened.negative()
    write_embeddings(PROMPTS, batches(5), folder)
    with open_embeddings(folder) as opened, pytest.raises(DataError, match=r"negative\.safetensors: no such file"):
        opened.negative()


def test_rows_may_have_a_negative_prompt_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "training"
    (batch,) = batches(5)
    write_embeddings(PROMPTS, [{**batch, "away.pooled": -batch["pooled"]}], folder)
    with open_embeddings(folder) as opened:
        assert opened.negative() is None
        found = opened.read([2, 0])
        assert torch.equal(found["away.pooled"], -batch["pooled"][[2, 0]])


def test_batches_do_not_affect_the_bytes(tmp_path: Path) -> None:
    one, other = write(tmp_path / "a", 2, 5), write(tmp_path / "b", 2, 1, 3, 1)
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes()


def test_a_shard_is_on_the_disk_before_the_next_rows_are_made(tmp_path: Path) -> None:
    """Memory does not grow with the number of prompts."""
    written = []

    def counted() -> Iterator[Mapping[str, Tensor]]:
        for batch in batches(1, 1, 1, 1, 1):
            yield batch
            written.append(len(list(tmp_path.glob(".training.*/training/shard-*"))))

    write_embeddings(PROMPTS, counted(), tmp_path / "training", shard_bytes=2 * ROW)
    assert written == [0, 1, 1, 2, 2]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    def failing() -> Iterator[Mapping[str, Tensor]]:
        yield from batches(4)
        raise DataError("the text encoder gives NaN")

    folder = write(tmp_path / "training")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(DataError, match=r"^the text encoder gives NaN$"):
        write_embeddings(PROMPTS, failing(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]


def test_rows_must_fit_the_prompts_and_each_other(tmp_path: Path) -> None:
    for given, message in (
        (batches(4), "shorter"),
        ([{"pooled": torch.zeros(3), "prompt_embeds": torch.zeros(2, 4)}], r"equally many rows, got \[2, 3\]"),
        ([{"pooled": torch.zeros(2, 3)}, {"pooled": torch.zeros(3, 4)}], "same names, shapes and types"),
    ):
        with pytest.raises(ValueError, match=message):
            write_embeddings(PROMPTS, given, tmp_path / "training")
    assert list(tmp_path.iterdir()) == []


def test_opening_reads_headers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "training")
    monkeypatch.setattr(Embeddings, "read", None)
    for path in folder.glob("shard-*"):
        content = path.read_bytes()
        path.write_bytes(content[:-ROW] + b"\xff" * ROW)  # other values, which only a reader would notice
    with open_embeddings(folder) as opened:
        assert len(opened.row_of) == 6


def rewritten(shard: Path, change: str) -> None:
    """Damage a shard."""
    tensors = load_file(shard)
    if change == "cut":
        shard.write_bytes(shard.read_bytes()[:-4])
        return
    if change == "gone":
        shard.unlink()
        return
    if change == "tensor":
        del tensors["pooled"]
    elif change == "rows":
        tensors = {name: tensor[:1].clone() for name, tensor in tensors.items()}
    elif change == "shape":
        tensors["pooled"] = tensors["pooled"][:, :2].contiguous()
    else:
        tensors["pooled"] = tensors["pooled"].float()
    save_file(tensors, shard)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cut", r"corrupt, cut off, or no safetensors file \("),
        ("gone", r"no such file\."),
        ("tensor", r"must hold the tensors pooled, prompt_embeds as the first shard does, got prompt_embeds\."),
        ("rows", r"pooled must have the 2 rows that index\.parquet names, got the shape \[1, 3\]\."),
        ("shape", r"a row of pooled must be BF16 \[3\] as in the first shard, got BF16 \[2\]\."),
        ("type", r"a row of pooled must be BF16 \[3\] as in the first shard, got F32 \[3\]\."),
    ],
)
def test_damage_is_found_when_they_are_opened(change: str, message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "training")
    shard = folder / "shard-00001.safetensors"
    rewritten(shard, change)
    with (
        pytest.raises(DataError, match=rf"shard-00001\.safetensors: {message}.*Delete the folder and run"),
        open_embeddings(folder),
    ):
        pass


def test_reports_full_disk_and_leaves_no_file(tmp_path: Path) -> None:
    """safetensors has one error class of its own for a full disk and for a damaged file."""
    tensors = {"pooled": torch.zeros(1, 10_000)}
    reason = r": cannot write: File too large\.$"
    with small_files(), pytest.raises(DataError, match=rf"training{reason}"):
        write_embeddings([("a", "one")], [tensors], tmp_path / "training")
    with small_files(), pytest.raises(DataError, match=rf"policy{reason}"), output_dir(tmp_path / "policy") as draft:
        save_file(tensors, draft / "model.safetensors")
    assert list(tmp_path.iterdir()) == []

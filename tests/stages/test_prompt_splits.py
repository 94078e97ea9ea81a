"""Which prompts go into which split, from every source that params.yaml may name."""

import json
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.artifacts import read_table
from chunk_grpo.config.prompts import PromptsParams
from chunk_grpo.errors import DataError
from stages._prompts import Split, splits_of
from tests.conftest import any_prompt, new_workspace, prompt_file

CHECKS = {"duplicates": "refuse", "empty": "refuse", "spaces": "strip", "too_long": "keep"}
RECORD = {
    "tag": "counting",
    "include": [{"class": "dog", "count": 2}],
    "exclude": [{"class": "dog", "count": 3}],
}
QUESTION = {
    "Category": "Cultural knowledge",
    "Subcategory": "Festival",
    "Explanation": "A pumpkin is carved.",
}


def splits(**settings: Any) -> dict[str, Split]:
    """The splits of a section `prompts`, by name."""
    given = {"source": "file", "train_file": None, "eval_file": None, "train_count": 3, "eval_count": 2}
    given |= {"wise_count": 0, "seed": 0, "checks": CHECKS, "benchmarks": {}, **settings}
    params = PromptsParams.model_validate_json(json.dumps(given))
    return {split.name: split for split in splits_of(params, {})}


def write(path: Path, *lines: str) -> dict[str, Any]:
    path.write_text("\n".join(lines) + "\n")
    return prompt_file(str(path))


def texts(split: Split) -> list[str]:
    return [row.text for row in split.rows]


def test_a_files_prompts_are_shared_out_in_seeded_order(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", *(f"prompt {n}" for n in range(9)))
    made = splits(train_file=file)
    assert len(made["train"].rows) == 3
    assert len(made["eval"].rows) == 2
    assert not set(texts(made["train"])) & set(texts(made["eval"]))
    assert texts(splits(train_file=file)["train"]) == texts(made["train"])
    assert texts(splits(train_file=file, seed=1)["train"]) != texts(made["train"])


def test_eval_prompts_of_a_file_of_their_own_keep_its_order(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", *(f"prompt {n}" for n in range(9)))
    held_out = write(tmp_path / "b.txt", "b", "a", "c")
    assert texts(splits(train_file=file, eval_file=held_out)["eval"]) == ["b", "a"]


def test_what_is_trained_on_is_not_evaluated_on(tmp_path: Path) -> None:
    file, held_out = write(tmp_path / "a.txt", "x", "y", "z"), write(tmp_path / "b.txt", "a", "y  ")
    with pytest.raises(DataError) as caught:
        splits(train_file=file, eval_file=held_out)
    assert str(caught.value).startswith(
        f"{tmp_path / 'b.txt'}, line 2: 'y' is also trained on ({tmp_path / 'a.txt'}, line 2); "
        "prompts of the eval split that are: 1."
    )
    same = write(tmp_path / "c.txt", "x", "x", "x", "x", "x")
    with pytest.raises(DataError, match="'x' is also trained on"):
        splits(train_file=same, checks=CHECKS | {"duplicates": "keep"})


def test_a_file_that_is_too_short_is_named_with_the_key(tmp_path: Path) -> None:
    file, short = write(tmp_path / "a.txt", "x", "y", "z"), write(tmp_path / "b.txt", "a")
    with pytest.raises(
        DataError, match=r"a.txt: must hold prompts.train_count \+ prompts.eval_count = 5 prompts, got 3"
    ):
        splits(train_file=file)
    with pytest.raises(DataError, match=r"a.txt: must hold prompts.train_count = 4 prompts, got 3"):
        splits(train_file=file, eval_file=short, train_count=4)
    with pytest.raises(DataError, match=r"b.txt: must hold prompts.eval_count = 2 prompts, got 1"):
        splits(train_file=file, eval_file=short)


def test_our_own_prompts_need_no_file_and_a_benchmark_of_them_is_not_trained_on() -> None:
    made = splits(source="coco", train_count=60, eval_count=12, benchmarks={"things": coco(24)})
    assert [len(split.rows) for split in made.values()] == [60, 12, 24]
    assert {row.category for row in made["things"].rows} == {row.category for row in made["train"].rows}
    contents = {
        name: {json.dumps(row.metadata["include"]) for row in split.rows} for name, split in made.items()
    }
    assert not contents["train"] & contents["eval"]
    assert not contents["train"] & contents["things"]


def coco(count: int) -> dict[str, Any]:
    return {"kind": "coco", "count": count, "seed": 0}


def test_benchmarks_are_splits_of_their_own(tmp_path: Path) -> None:
    geneval, wise = tmp_path / "evaluation_metadata.jsonl", tmp_path / "cultural_common_sense.json"
    geneval.write_text("".join(json.dumps(RECORD | {"prompt": f"two dogs {n}"}) + "\n" for n in range(3)))
    wise.write_text(json.dumps([QUESTION | {"prompt_id": n, "Prompt": f"prompt {n}"} for n in (1, 2, 3)]))
    more = write(tmp_path / "more.csv", "Prompts,Category", "one,x", "two,y")
    of_wise = {"kind": "wise", "version": "legacy", "paths": [str(wise)], "rewritten": []}
    made = splits(
        source="coco",
        benchmarks={
            "geneval": {"kind": "geneval", "path": str(geneval), "count": 2},
            "wise": of_wise | {"missing_ids": "report", "count": None},
            "drawbench": {"kind": "file", "file": more, "count": None},
        },
    )
    assert texts(made["geneval"]) == ["two dogs 0", "two dogs 1"]
    assert made["geneval"].rows[0].metadata["include"] == RECORD["include"]
    assert [row.metadata["wise_id"] for row in made["wise"].rows] == [1, 2, 3]
    assert {row.category for row in made["wise"].rows} == {"culture"}
    assert [(row.text, row.category) for row in made["drawbench"].rows] == [("one", "x"), ("two", "y")]
    assert made["wise"].report is not None
    with pytest.raises(DataError, match="997 are missing"):
        splits(source="coco", benchmarks={"wise": of_wise | {"missing_ids": "refuse", "count": None}})


def test_the_stage_tells_what_it_did_with_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = new_workspace(tmp_path)
    write(tmp_path / "a.txt", *(f" prompt {n}" for n in range(24)), "prompt 3", "b" * 100)
    given = {"source": "file", "train_file": prompt_file("a.txt"), "wise_count": 0, "eval_count": 9}
    made.edit(lambda raw: raw["prompts"].update(given))
    made.edit(lambda raw: raw["prompts"]["checks"].update(duplicates="drop"))
    made.edit(any_prompt)
    assert made.run("prepare_prompts") == 0
    table = read_table(str(made.artifacts / "prompts" / "evaluation.parquet"), "prompts")
    assert table.num_rows == 25
    told = json.loads((made.artifacts / "prompts" / "checks.json").read_text())["train"]
    assert (told["read"], told["kept"]) == (26, 25)
    by_kind = {finding["what"]: (finding["action"], finding["count"]) for finding in told["findings"]}
    assert by_kind["duplicates"] == ("drop", 1)
    assert by_kind["whitespace around the prompt"] == ("strip", 24)
    assert ("keep", 1) in [entry for name, entry in by_kind.items() if "CLIP" in name]
    assert any("25 of 26 prompts taken" in message for message in caplog.messages)

"""Which prompts go into which split, from every source that params.yaml may name."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chunk_grpo.artifacts import read_table
from chunk_grpo.config import load_params
from chunk_grpo.config.prompts import PromptsParams
from chunk_grpo.config.questions import parse_questions
from chunk_grpo.errors import DataError
from chunk_grpo.families.tokens import token_limits
from chunk_grpo.prompts.read import read_prompt_file
from chunk_grpo.prompts.splits import Split, splits_of
from chunk_grpo.prompts.tables import compared_rows
from chunk_grpo.shapes.edits import EDIT_KINDS, all_instructions, parse_edit
from chunk_grpo.shapes.prompts import all_prompts, knowledge_prompts
from tests.conftest import CHECKPOINT, Workspace, any_prompt, new_workspace, prompt_file

ROOT = Path(__file__).resolve().parents[2]
CHECKS = {"duplicates": "refuse", "empty": "refuse", "spaces": "strip", "too_long": "keep"}
LIMITS = {"words": (lambda text: len(text.split()), 3)}
DOGS = [[{"class": "dog", "count": count}] for count in (2, 3)]
RECORD = {"tag": "counting", "include": DOGS[0], "exclude": DOGS[1]}
QUESTION = {"Category": "Cultural knowledge", "Subcategory": "Festival", "Explanation": "A pumpkin is carved."}


def splits(**settings: Any) -> dict[str, Split]:
    """The splits of a section `prompts`, by name."""
    given = {"source": "file", "train_file": None, "eval_file": None, "train_count": 3, "eval_count": 2}
    given |= {"wise_count": 0, "seed": 0, "checks": CHECKS, "benchmarks": {}, **settings}
    params = PromptsParams.model_validate_json(json.dumps(given))
    return {split.name: split for split in splits_of(params, lambda: LIMITS, (32, 32))}


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
    held_out = write(tmp_path / "b.txt", "b", "a", "c")  # in its own order
    assert texts(splits(train_file=file, eval_file=held_out)["eval"]) == ["b", "a"]


def test_rejects_overlap_of_train_and_eval_prompts(tmp_path: Path) -> None:
    file, held_out = write(tmp_path / "a.txt", "x", "y", "z"), write(tmp_path / "b.txt", "a", "y  ")
    with pytest.raises(DataError) as caught:
        splits(train_file=file, eval_file=held_out)
    assert str(caught.value) == (
        f"{tmp_path / 'a.txt'}, line 2: in the eval split too ({tmp_path / 'b.txt'}, line 2): 'y'. Fix the file, or a "
        "copy of it, or set `prompts.checks.shared: drop` (from the train split) or `keep`."
    )
    same = write(tmp_path / "c.txt", "x", "x", "x", "x", "x", "y")
    with pytest.raises(DataError, match=r"prompts\.eval_count = 2 prompts that are not trained on, got"):
        splits(train_file=same, checks=CHECKS | {"duplicates": "keep"})


def test_train_prompts_of_the_eval_split_may_be_dropped_or_kept(tmp_path: Path) -> None:
    file, held_out = write(tmp_path / "a.txt", "v", "w", "x", "y"), write(tmp_path / "b.txt", "a", "y  ", "z")
    for action, count, expected in (("drop", 3, {"v", "w", "x"}), ("keep", 4, {"v", "w", "x", "y"})):
        checks = CHECKS | {"shared": action}
        made = splits(train_file=file, eval_file=held_out, train_count=count, checks=checks)
        assert set(texts(made["train"])) == expected
        assert texts(made["eval"]) == ["a", "y"]
        report = made["train"].report
        assert report is not None
        assert [(f.what, f.action, f.lines) for f in report.findings] == [("prompts of the eval split", action, (4,))]
    with pytest.raises(DataError, match=r"train_count = 4 prompts, got 3 \(4 were read and 1 dropped\)"):
        splits(train_file=file, eval_file=held_out, train_count=4, checks=CHECKS | {"shared": "drop"})


def test_long_prompts_are_dropped_before_the_split(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", *(f"prompt {n}" for n in range(5)), *(f"a long prompt {n}" for n in range(9)))
    made = splits(train_file=file, checks=CHECKS | {"too_long": "drop"})
    assert {len(text.split()) for text in texts(made["train"]) + texts(made["eval"])} == {2}
    report = made["train"].report
    assert report is not None
    assert (report.read, report.kept) == (14, 5)


def geneval_file(path: Path, *pairs: tuple[str, str]) -> dict[str, Any]:
    records = (
        {
            "tag": "two_object",
            "include": [{"class": name, "count": 1} for name in pair],
            "prompt": f"{pair[0]} {pair[1]}",
        }
        for pair in pairs
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return prompt_file(str(path))


def test_prompts_of_geneval_are_trained_on_with_their_records(tmp_path: Path) -> None:
    file = geneval_file(tmp_path / "a.jsonl", ("cat", "dog"), ("cow", "dog"), ("cat", "cow"), ("bus", "car"))
    held_out = geneval_file(tmp_path / "b.jsonl", ("dog", "cow"), ("car", "cow"))
    with pytest.raises(DataError, match=r"line 2: in the eval split too .*line 1\): 'cow dog'"):
        splits(source="geneval", train_file=file, eval_file=held_out, train_count=4)
    made = splits(source="geneval", train_file=file, eval_file=held_out, checks=CHECKS | {"shared": "drop"})
    assert set(texts(made["train"])) == {"cat dog", "cat cow", "bus car"}
    assert made["train"].rows[0].metadata["tag"] == "two_object"
    assert made["train"].rows[0].category == "two_object"


def test_one_file_of_geneval_is_shared_out_by_content(tmp_path: Path) -> None:
    """The same objects in another order are not evaluated on."""
    names = ("cat", "dog", "cow", "bus", "car")
    pairs = [(one, other) for one in names for other in names if one != other]  # each content twice
    file = geneval_file(tmp_path / "a.jsonl", *pairs)
    for seed in range(5):
        made = splits(source="geneval", train_file=file, train_count=8, eval_count=3, seed=seed)
        contents = [{frozenset(text.split()) for text in texts(made[name])} for name in ("train", "eval")]
        assert not contents[0] & contents[1]
        assert (len(made["train"].rows), len(made["eval"].rows)) == (8, 3)
    with pytest.raises(DataError, match=r"not trained on, got \d+: \d+ of the other 12 ask for the same as"):
        splits(source="geneval", train_file=file, train_count=8, eval_count=12)


def test_a_missing_field_names_the_whole_key(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a.txt", "x", "y", "z"), write(tmp_path / "b.csv", "caption", "a", "b")
    with pytest.raises(DataError, match=r"name it by `prompts\.eval_file\.prompt_field`"):
        splits(train_file=good, eval_file=bad)


def test_a_file_that_is_too_short_is_named_with_the_key_and_its_duplicates(tmp_path: Path) -> None:
    file, short = write(tmp_path / "a.txt", "x", "y", "z"), write(tmp_path / "b.txt", "a")
    doubles = write(tmp_path / "c.txt", "x", "y", "x", "z", "x", "v", "w")
    checks = CHECKS | {"duplicates": "drop"}
    both = r"prompts.train_count \+ prompts.eval_count = {}"
    for settings, message in (
        ({"train_file": file}, rf"a.txt: must hold {both.format(5)} prompts, got 3"),
        ({"train_file": file, "eval_file": short, "train_count": 4}, r"a.txt: .*train_count = 4 prompts, got 3"),
        ({"train_file": file, "eval_file": short}, r"b.txt: must hold prompts.eval_count = 2 prompts, got 1"),
        (
            {"train_file": doubles | {"limit": 5}, "checks": checks},
            r"5 were read and 2 dropped\); raise `prompts.train_file.limit`",
        ),
        ({"train_file": doubles, "train_count": 4, "checks": checks}, r"7 were read and 2 dropped\); lower the"),
    ):
        with pytest.raises(DataError, match=message):
            splits(**settings)
    assert len(splits(train_file=doubles, checks=checks)["train"].rows) == 3


def test_reports_count_used_prompts(tmp_path: Path) -> None:
    file = write(tmp_path / "a.txt", *(f"prompt {n}" for n in range(99)), "prompt 0")
    held_out = write(tmp_path / "b.txt", "a", "b", "c", "d")
    benchmarks = {
        "more": {"kind": "file", "file": file, "count": 3},
        "all": {"kind": "file", "file": held_out, "count": None},
    }
    checks = CHECKS | {"duplicates": "drop"}
    made = splits(checks=checks, train_count=4, train_file=file, eval_file=held_out, benchmarks=benchmarks)
    told = {name: split.report.lines() for name, split in made.items() if split.report}
    assert {name: lines[0].split(": ")[1] for name, lines in told.items()} == {
        "train": "4 of 100 prompts taken, 99 passed the checks",
        "eval": "2 of 4 prompts taken, 4 passed the checks",
        "more": "3 of 100 prompts taken, 99 passed the checks",
        "all": "4 of 4 prompts taken",
    }
    assert told["train"][1] == f"{tmp_path / 'a.txt'}: duplicates: 1 dropped (line 100)"


def test_our_own_prompts_need_no_file_and_a_benchmark_of_them_is_not_trained_on() -> None:
    made = splits(source="coco", train_count=60, eval_count=12, benchmarks={"things": coco(24)})
    assert [len(split.rows) for split in made.values()] == [60, 12, 24]
    assert {row.category for row in made["things"].rows} == {row.category for row in made["train"].rows}
    contents = {name: {json.dumps(row.metadata["include"]) for row in split.rows} for name, split in made.items()}
    assert not contents["train"] & contents["eval"]
    assert not contents["train"] & contents["things"]


def edits(train_count: int, eval_count: int, seed: int = 0) -> dict[str, Split]:
    params = PromptsParams(source="shapes-edits", train_count=train_count, eval_count=eval_count, seed=seed)
    return {split.name: split for split in splits_of(params, dict, (32, 32))}


def test_edits_of_the_toy_world_have_scenes_of_their_own() -> None:
    """Kinds in turn; instructions of both splits differ; more prompts do not change the first ones."""
    made = edits(train_count=120, eval_count=60)
    instructions = {i.prompt: i for i in all_instructions()}
    for name, held_out in (("train", False), ("eval", True)):
        rows = made[name].rows
        assert [row.category for row in rows] == [*EDIT_KINDS] * (len(rows) // 3)
        assert {instructions[row.text].held_out for row in rows} == {held_out}
        assert len({row.scene for row in rows}) == len(rows)
        assert all(parse_edit(row.text, row.metadata).source == row.scene for row in rows)
    assert {row.text for row in made["train"].rows}.isdisjoint(row.text for row in made["eval"].rows)
    longer = edits(train_count=150, eval_count=61)
    assert longer["train"].rows[:120] == made["train"].rows
    assert longer["eval"].rows[:60] == made["eval"].rows
    assert edits(train_count=3, eval_count=3, seed=1)["eval"] != longer["eval"]


def coco(count: int) -> dict[str, Any]:
    return {"kind": "coco", "count": count, "seed": 0}


def test_benchmarks_are_splits_of_their_own(tmp_path: Path) -> None:
    geneval, wise = tmp_path / "evaluation_metadata.jsonl", tmp_path / "cultural_common_sense.json"
    geneval.write_text("".join(json.dumps(RECORD | {"prompt": f"two dogs {n}"}) + "\n" for n in range(3)))
    wise.write_text(json.dumps([QUESTION | {"prompt_id": n, "Prompt": f"prompt {n}"} for n in (1, 2, 3)]))
    more = write(tmp_path / "more.csv", "Prompts,Category", "one,x", "two,y")
    of_wise = {"kind": "wise", "version": "legacy", "paths": [str(wise)], "rewritten": []}
    rows = ["item_id,text,proposition_id,dependency,tuple,question_natural_language", "a,a cup,1,0,entity,A cup?"]
    dpg = tmp_path / "dpg_bench.csv"
    dpg.write_text("\n".join([*rows, "b,a dog,1,0,entity,A dog?", "b,a dog,2,1,entity,Is it red?"]))
    made = splits(
        source="coco",
        benchmarks={
            "dpg": {"kind": "dpg", "path": str(dpg), "count": None},
            "geneval": {"kind": "geneval", "path": str(geneval), "count": 2},
            "wise": of_wise | {"missing_ids": "report", "count": None},
            "drawbench": {"kind": "file", "file": more, "count": None},
        },
    )
    assert texts(made["dpg"]) == ["a cup", "a dog"]
    assert [len(parse_questions(row.metadata)) for row in made["dpg"].rows] == [1, 2]
    assert texts(made["geneval"]) == ["two dogs 0", "two dogs 1"]
    assert made["geneval"].rows[0].metadata["include"] == RECORD["include"]
    assert [row.metadata["wise_id"] for row in made["wise"].rows] == [1, 2, 3]
    assert {row.category for row in made["wise"].rows} == {"culture"}
    assert [(row.text, row.category) for row in made["drawbench"].rows] == [("one", "x"), ("two", "y")]
    assert made["wise"].report is not None
    assert made["geneval"].report is not None
    assert (made["geneval"].report.read, made["geneval"].report.used) == (3, 2)
    assert "counting 2 (80)" in made["geneval"].report.notes[0]
    with pytest.raises(DataError, match="997 are missing"):
        splits(source="coco", benchmarks={"wise": of_wise | {"missing_ids": "refuse", "count": None}})


def prepared(folder: Path, lines: Iterable[str], file: str = "a.txt", eval_count: int = 8, **checks: str) -> Workspace:
    """A workspace whose prompts, of a file with these lines, are prepared."""
    made = new_workspace(folder)
    write(folder / file, *lines)
    given = {"source": "file", "train_file": prompt_file(file), "wise_count": 0, "eval_count": eval_count}
    made.edit(lambda raw: raw["prompts"].update(given))
    made.edit(lambda raw: raw["prompts"]["checks"].update(checks))
    made.edit(any_prompt)
    assert made.run("prepare_prompts") == 0
    return made


PLAIN = [f"prompt {n}" for n in range(24)]


def test_stage_reports_checks_of_prompt_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the log, by split in checks.json, and each prompt in findings.csv; other columns are for scorers."""
    texts = [*(f" {prompt}" for prompt in PLAIN), *["prompt 3"] * 30, "a\u200bb", "b" * 100]
    lines = ["prompt,text", *(f"{text},SIGN {text.strip()}" for text in texts)]
    made = prepared(tmp_path, lines, "a.csv", eval_count=9, duplicates="drop", characters="drop")
    table = read_table(str(made.artifacts / "prompts" / "training.parquet"), "prompts")
    assert table.num_rows == 25
    for row in table.to_pylist():
        assert json.loads(row["metadata"]) == {"text": f"SIGN {row['prompt']}"}
    told = checks_of(made)["train"]
    assert (told["read"], told["kept"], told["used"]) == (56, 25, 16)
    by_kind = {finding["what"]: (finding["action"], finding["count"]) for finding in told["findings"]}
    assert by_kind["duplicates"] == ("drop", 30)
    assert by_kind["whitespace around the prompt"] == ("strip", 24)
    assert ("keep", 1) in [entry for name, entry in by_kind.items() if "CLIP" in name]
    assert "train: a.csv: 16 of 56 prompts taken, 25 passed the checks" in caplog.messages
    assert "eval: a.csv: 9 of 56 prompts taken, 25 passed the checks" in caplog.messages
    found = list(csv.DictReader((made.artifacts / "prompts" / "findings.csv").open()))
    assert [int(row["number"]) for row in found if row["action"] == "drop"] == [*range(26, 56), 56]
    assert [row for row in found if row["number"] == "55"] == [
        {
            "split": "train",
            "source": "a.csv",
            "unit": "line",
            "number": "55",
            "problem": "duplicates",
            "action": "drop",
            "message": "the same prompt as in line 5: 'prompt 3'",
        }
    ]


def checks_of(made: Workspace) -> Any:
    return json.loads((made.artifacts / "prompts" / "checks.json").read_text())


def test_long_generated_prompts_are_reported_or_refused(tmp_path, caplog):
    """T5 of the toy checkpoint takes 8 tokens, most of these prompts have more."""
    made = new_workspace(tmp_path)
    given = {"source": "coco", "wise_count": 0, "benchmarks": {"things": coco(60)}}
    made.edit(lambda raw: raw["prompts"].update(given))
    made.edit(any_prompt)
    assert made.run("prepare_prompts") == 0
    told = checks_of(made)
    assert set(told) == {"train", "eval", "things"}
    count, limit = token_limits("flux", str(CHECKPOINT), None, 8)["T5"]
    table = read_table(str(made.artifacts / "prompts" / "evaluation.parquet"), "prompts").to_pylist()
    things = [row["prompt"] for row in table if row["split"] == "things"]
    long = [number for number, text in enumerate(things, start=1) if count(text) > limit]
    (finding,) = (one for one in told["things"]["findings"] if "T5" in one["what"])
    assert (finding["action"], finding["count"], finding["first"]) == ("keep", len(long), long[:20])
    assert len(long) > 30
    assert any(message.startswith("things: coco: longer than T5's 8 tokens") for message in caplog.messages)
    made.edit(lambda raw: raw["prompts"]["checks"].update(too_long="refuse"))
    assert made.run("prepare_prompts") == DataError.exit_code


@pytest.mark.slow  # a process of its own
def test_truncated_prompts_are_reported_once_by_line(tmp_path: Path) -> None:
    """The libraries would print the text of each of them when it is encoded."""
    made = prepared(tmp_path, [f"{prompt} {'uvw ' * 40}" for prompt in PLAIN])
    assert [made.run(stage) for stage in ("inputs", "prepare_prompts")] == [0, 0]
    assert {f["count"] for f in checks_of(made)["eval"]["findings"]} == {8}
    process = made.process("encode_prompts@evaluation")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "uvw" not in errors
    assert "sequence length" not in errors


def test_file_is_read_once_and_checked_before_tokenizers_load(tmp_path, monkeypatch, capsys):
    read: list[object] = []
    monkeypatch.setattr(
        "chunk_grpo.prompts.splits.read_prompt_file", lambda *args: read.append(args) or read_prompt_file(*args)
    )
    made = prepared(tmp_path, PLAIN)
    assert len(read) == 1
    monkeypatch.setattr("stages.prepare_prompts.token_limits", None)
    write(tmp_path / "a.txt", "a", "", *PLAIN)
    assert made.run("prepare_prompts") == DataError.exit_code
    assert "line 2: an empty prompt" in capsys.readouterr().err


def test_captions_of_the_toy_world_fit_and_a_new_benchmark_leaves_what_is_trained_on(tmp_path, caplog):
    made = new_workspace(tmp_path)
    assert made.run("prepare_prompts") == 0
    assert checks_of(made) == {}
    assert [said for said in caplog.messages if "prompts are used" not in said] == []
    for count, limit in token_limits("flux", str(CHECKPOINT), None, 8).values():
        assert max(count(spec.prompt) for spec in (*all_prompts(), *knowledge_prompts())) <= limit
    before = made.files()
    made.edit(lambda raw: raw["prompts"]["benchmarks"].update(things=coco(6)))
    assert made.run("prepare_prompts") == 0
    assert made.files()["prompts/training.parquet"] == before["prompts/training.parquet"]
    assert made.files()["prompts/evaluation.parquet"] != before["prompts/evaluation.parquet"]


ROWS = [{"prompt": text} for text in ("a", "b", "a", "c", "b", "d")]


def heldout_of(**settings: Any) -> Any:
    """Parameters with two held-out prompts in training."""
    params = load_params(ROOT / "params.yaml")
    heldout = params.train.heldout.model_copy(update={"num_prompts": 2, **settings})
    return params.model_copy(update={"train": params.train.model_copy(update={"heldout": heldout})})


def test_monitoring_prompts_are_used_for_comparison() -> None:
    assert compared_rows(ROWS, heldout_of(patience=None, controller=None, keep_best=True)) == ROWS


@pytest.mark.parametrize("setting", [{"patience": 3}, {"controller": object()}])
def test_stopping_prompts_are_not_used_for_comparison(setting: dict[str, Any]) -> None:
    """Nor are their repetitions."""
    assert [row["prompt"] for row in compared_rows(ROWS, heldout_of(**setting))] == ["c", "d"]
    with pytest.raises(DataError, match=r"prompts\.eval_count: the first 2 eval prompts decide .* none of"):
        compared_rows([row for row in ROWS if row["prompt"] in "ab"] + ROWS[:1], heldout_of(**setting))

"""Prompts of `source: shapes-edits`."""

from chunk_grpo.config.prompts import PromptsParams
from chunk_grpo.prompts.splits import Split, splits_of
from chunk_grpo.shapes.edits import EDIT_KINDS, all_instructions, parse_edit


def splits(train_count: int, eval_count: int, seed: int = 0) -> dict[str, Split]:
    params = PromptsParams(source="shapes-edits", train_count=train_count, eval_count=eval_count, seed=seed)
    return {split.name: split for split in splits_of(params, dict, (32, 32))}


def test_edits_of_the_toy_world_have_scenes_of_their_own() -> None:
    """Kinds in turn; instructions of both splits differ; more prompts do not change the first ones."""
    made = splits(train_count=120, eval_count=60)
    instructions = {i.prompt: i for i in all_instructions()}
    for name, held_out in (("train", False), ("eval", True)):
        rows = made[name].rows
        assert [row.category for row in rows] == [*EDIT_KINDS] * (len(rows) // 3)
        assert {instructions[row.text].held_out for row in rows} == {held_out}
        assert len({row.scene for row in rows}) == len(rows)
        assert all(parse_edit(row.text, row.metadata).source == row.scene for row in rows)
    assert {row.text for row in made["train"].rows}.isdisjoint(row.text for row in made["eval"].rows)
    longer = splits(train_count=150, eval_count=61)
    assert longer["train"].rows[:120] == made["train"].rows
    assert longer["eval"].rows[:60] == made["eval"].rows
    assert splits(train_count=3, eval_count=3, seed=1)["eval"] != longer["eval"]

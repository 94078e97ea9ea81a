"""Choose the prompts: captions of the toy world, or a text file with a prompt a line."""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chunk_grpo.artifacts import read_text, table_from_rows, write_table
from chunk_grpo.config import Params
from chunk_grpo.config.models import PromptsParams
from chunk_grpo.errors import DataError
from chunk_grpo.shapes.prompts import CATEGORIES, PromptSpec, all_prompts, knowledge_prompts
from stages._stage import argument, run_stage


@dataclass(frozen=True)
class Arguments:
    out: str = field(metadata=argument("prompts/1, Parquet", writes=True))


def shapes_prompts(settings: PromptsParams) -> list[dict[str, str]]:
    """Train prompts of contents that are not held out, eval prompts of contents that are, and the WISE-like set.

    The six categories come equally often; a category with fewer captions than asked for repeats them, each time under
    another id and thus with another noise.
    """
    rng = random.Random(settings.seed)
    shown = [[p for p in all_prompts() if p.category == c and not p.held_out] for c in CATEGORIES]
    hidden = [[p for p in all_prompts() if p.category == c and p.held_out] for c in CATEGORIES]
    rows = _rows("train", _balanced(shown, settings.train_count, rng))
    rows += _rows("eval", _balanced(hidden, settings.eval_count, rng))
    if settings.wise_count:
        rows += _rows("wise", _balanced([knowledge_prompts()], settings.wise_count, rng))
    return rows


def _balanced(pools: Sequence[Sequence[PromptSpec]], count: int, rng: random.Random) -> list[PromptSpec]:
    """`count` captions, from each pool in turn; a pool is used up before any of its captions returns."""
    piles: list[list[PromptSpec]] = [[] for _ in pools]
    chosen = []
    for number in range(count):
        pile = piles[number % len(pools)]
        if not pile:
            pile += rng.sample(list(pools[number % len(pools)]), len(pools[number % len(pools)]))
        chosen.append(pile.pop())
    return chosen


def _rows(split: str, specs: Sequence[PromptSpec]) -> list[dict[str, str]]:
    return [_row(split, i, s.prompt, s.category, json.dumps(s.metadata())) for i, s in enumerate(specs)]


def _row(split: str, number: int, prompt: str, category: str, metadata: str) -> dict[str, str]:
    return {
        "prompt_id": f"{split}-{number:05d}",
        "split": split,
        "prompt": prompt,
        "category": category,
        "metadata": metadata,
    }


def file_prompts(settings: PromptsParams) -> list[dict[str, str]]:
    """The first `train_count` lines of a file in seeded order for training, the next `eval_count` for evaluation."""
    path = str(settings.path)
    lines = [line.strip() for line in read_text(path).splitlines()]
    if not any(lines):
        raise DataError(f"{path}: must hold a prompt a line, got no prompt at all")
    for number, line in enumerate(lines, start=1):
        if not line:
            raise DataError(f"{path}, line {number}: must hold a prompt, got an empty line; remove it")
    needed = settings.train_count + settings.eval_count
    if len(lines) < needed:
        raise DataError(
            f"{path}: must hold prompts.train_count + prompts.eval_count = {needed} prompts, got {len(lines)}; "
            "lower the counts or add prompts"
        )
    random.Random(settings.seed).shuffle(lines)
    train, rest = lines[: settings.train_count], lines[settings.train_count : needed]
    rows = [_row("train", i, text, "", "{}") for i, text in enumerate(train)]
    return rows + [_row("eval", i, text, "", "{}") for i, text in enumerate(rest)]


def main(params: Params, arguments: Arguments) -> None:
    """Write the prompts table."""
    settings = params.prompts
    if (
        settings.path is not None
        and not settings.path.startswith("s3://")
        and not Path(settings.path).exists()
    ):
        raise DataError(
            f"prompts.path: the file {settings.path} does not exist; give a text file with a prompt a line"
        )
    rows = shapes_prompts(settings) if settings.source == "shapes" else file_prompts(settings)
    write_table(table_from_rows(rows, "prompts"), arguments.out, "prompts")


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))

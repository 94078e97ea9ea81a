"""Scores count as a benchmark's only if prompts, rules and judge are the benchmark's."""

import dataclasses
import json
from collections.abc import Iterable, Mapping

import pytest

from chunk_grpo.artifacts import table_from_rows
from chunk_grpo.config import load_params
from chunk_grpo.config.judges import WiseScorer
from chunk_grpo.reporting.evidence import PromptKind, ScorerUse, Source
from chunk_grpo.reporting.inputs import settings_from
from chunk_grpo.reporting.official_benchmarks import Benchmark, benchmark_of, benchmarks_not_run
from chunk_grpo.reporting.tables import GENEVAL_CATEGORIES, WISE_CATEGORIES
from chunk_grpo.scorers.geneval.records import OFFICIAL_COUNTS, TAGS
from chunk_grpo.scorers.wise.protocols import PROTOCOLS

GENEVAL = ScorerUse("ge", "geneval", ("more",), "")
ALL_IDS = range(1, 1001)
GPT = "openai/gpt-4o-2024-05-13"


def prompts(rows: Iterable[tuple[str, Mapping[str, object]]]) -> Source:
    """Prompts of the split `more`, after one of another split."""
    found = [("eval", "counting", {"wise_id": 1}), *(("more", category, record) for category, record in rows)]
    return Source(
        "prompts.parquet",
        table_from_rows(
            [
                {"prompt_id": str(n), "split": split, "prompt": "a cat", "category": category}
                | {"metadata": json.dumps(record)}
                for n, (split, category, record) in enumerate(found)
            ],
            "prompts",
        ),
    )


def found_of(use: ScorerUse, kind: PromptKind, source: Source, images: int = 4) -> Benchmark:
    settings = dataclasses.replace(settings_from(load_params()), prompt_kinds={"more": kind}, images_per_prompt=images)
    found = benchmark_of(use, "more", source, settings)
    assert found is not None
    return found


def tags(counts: Mapping[str, int]) -> Source:
    return prompts((tag, {}) for tag, count in counts.items() for _ in range(count))


def test_geneval_prompts_count_as_geneval() -> None:
    """Only the detector differs, and the number of images if it is another one."""
    for images, differs in ((4, ("another detector",)), (1, ("another detector", "images per prompt: 1, not 4"))):
        found = found_of(GENEVAL, PromptKind("geneval"), tags(OFFICIAL_COUNTS), images)
        assert (found.complete, found.differs) == (True, differs)
        assert f"GenEval (more: {', '.join(differs)}), WISE." in benchmarks_not_run([found])


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("coco", OFFICIAL_COUNTS),
        ("geneval", {"counting": 3}),
        ("geneval", {**OFFICIAL_COUNTS, "colors": 93, "counting": 81}),
    ],
)
def test_genevals_rules_on_other_prompts_are_not(kind: str, counts: Mapping[str, int]) -> None:
    found = found_of(GENEVAL, PromptKind(kind), tags(counts))
    assert not found.complete
    assert found.what.startswith(f"Not GenEval: {sum(counts.values())} ")
    assert found.what.endswith("; no published number compares")
    assert f"GenEval (more: {found.differs[0]}), WISE." in benchmarks_not_run([found])


def wise(
    ids: Iterable[int],
    *,
    protocol: str = "legacy",
    model: str = GPT,
    original_words: bool = True,
    rewritten: bool = True,
) -> Benchmark:
    judge = WiseScorer.model_construct(
        protocol=protocol, judge=model, instructions="gpt_eval.py" if original_words else None
    )
    source = prompts(("culture", {"wise_id": number}) for number in ids)
    return found_of(ScorerUse("w", "wise", ("more",), "", judge), PromptKind("wise", rewritten), source)


def test_wise_as_in_the_paper() -> None:
    found = wise(ALL_IDS)
    assert found.complete and not found.differs
    assert "WISE" not in benchmarks_not_run([found])


@pytest.mark.parametrize(
    ("found", "differs", "published"),
    [
        (wise(range(1, 1000)), "999 of its 1,000 prompts", False),
        (wise([*range(1, 1000), 1001]), "999 of its 1,000 prompts", False),
        (wise(ALL_IDS, original_words=False), "asked in this package’s own words", False),
        (wise(ALL_IDS, model="tiny"), "judged by tiny, not gpt-4o-2024-05-13", False),
        (wise(ALL_IDS, rewritten=False), "prompts not rewritten", True),
        (wise(ALL_IDS, protocol="verified", model="Qwen/Qwen3.5-35B-A3B"), "protocol verified, not legacy", True),
    ],
)
def test_wise_differences_from_paper_are_reported(found: Benchmark, differs: str, published: bool) -> None:
    assert found.what.endswith("; no published number compares") != published
    assert found.differs == (differs,)
    assert f"WISE (more: {differs})" in benchmarks_not_run([found])


def test_one_split_as_in_the_paper_is_enough() -> None:
    told = benchmarks_not_run([wise([1, 2]), wise(ALL_IDS), found_of(GENEVAL, PromptKind("coco"), tags({"colors": 2}))])
    assert "GenEval (more:" in told and "WISE" not in told


def test_scorers_of_the_toy_world_are_no_benchmark() -> None:
    use = ScorerUse("shapes-exact", "shapes-exact", ("eval",), "")
    assert benchmark_of(use, "eval", tags({"colors": 2}), settings_from(load_params())) is None


def test_columns_are_in_the_benchmarks_order() -> None:
    assert tuple(GENEVAL_CATEGORIES) == TAGS
    assert all(tuple(WISE_CATEGORIES) == tuple(protocol.last_ids) for protocol in PROTOCOLS.values())

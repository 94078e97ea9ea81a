"""Images that a scorer judges, by hand and against the tables of a run."""

from chunk_grpo.artifacts import read_table
from chunk_grpo.config import load_params
from chunk_grpo.planning.images import ScoredImages, evaluated_sets, heldout_evaluations, scored_images
from tests.conftest import SCORER, VARIANT, Workspace
from tests.planning.planned import edited, preset

PROMPTS = {"eval": 8, "wise": 4}


def test_smoke_by_hand() -> None:
    """2 variants, 1 seed, 2 iterations of 2 prompts and 4 images; 3 measurements of 2 images; 5 sets of 12 images."""
    smoke = preset("smoke")
    reward = 2 * (2 * 2 * 4 + 3 * 2)
    assert scored_images(smoke, "shapes-graded", PROMPTS) == ScoredImages(reward, 5 * 12)
    assert scored_images(smoke, "shapes-exact", PROMPTS) == ScoredImages(2 * 3 * 2, 5 * 12)
    unused = edited(smoke, train={"heldout": smoke.train.heldout.model_dump() | {"scorers": ()}})
    assert scored_images(unused, "shapes-exact", PROMPTS) == ScoredImages(0, 60)
    assert scored_images(unused, "shapes-exact", PROMPTS).total == 60


def test_seeds_and_policies() -> None:
    smoke = preset("smoke")
    saved, given = {"kind": "weights", "path": "a"}, {"kind": "images", "path": "b"}
    raw = edited(smoke, train={"seeds": (0, 1, 2)}, policies={"saved": saved, "given": given})
    assert evaluated_sets(raw) == 1 + 2 * 2 * 3 + 2 + 1
    assert scored_images(raw, "shapes-graded", PROMPTS).training == 3 * 44


def test_variants_that_have_more_images_scored() -> None:
    methods = preset("methods")
    gains = {"chunk-gains": 1 + 4, "step-gains": 1 + 16}  # with the images that are predicted before each chunk
    points = [gains.get(name, own.branching.points if own.branching else 1) for name, own in methods.variants.items()]
    assert any(own.branching for own in methods.variants.values()) and gains.keys() <= methods.variants.keys()
    train, name = methods.train, next(iter(methods.rewards))
    a_group = train.iterations * train.prompts_per_iteration * train.group_size
    never = edited(methods, train={"heldout": train.heldout.model_dump() | {"num_prompts": 1}})
    counts = dict.fromkeys(methods.scorers[name].splits, 1)
    held = scored_images(methods, name, counts).training - scored_images(never, name, counts).training
    of_held = held * train.heldout.num_prompts // (train.heldout.num_prompts - 1)
    rolled_out = scored_images(methods, name, counts).training - of_held
    assert rolled_out == len(train.seeds) * sum(points) * a_group


def test_evaluation_against_the_tables(finished: Workspace) -> None:
    """The workspace has the base and one of two variants."""
    params = load_params(finished.root / "params.yaml")
    base, own = (
        read_table(str(finished.artifacts / "scores" / policy / f"{SCORER}.parquet"), "scores")["metric"]
        .to_pylist()
        .count("score")
        for policy in ("base", VARIANT)
    )
    assert scored_images(params, SCORER, PROMPTS).evaluation == base + len(params.variants) * own


def test_heldout_evaluations() -> None:
    """Before training, after 25, 50, ... 150 iterations; after 140 of 140 too."""
    assert heldout_evaluations(preset("flux-dev").train) == 7
    assert heldout_evaluations(edited(preset("flux-dev"), train={"iterations": 140}).train) == 7

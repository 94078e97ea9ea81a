"""Every rule of params.yaml, with the message that tells a user what broke it."""

import copy
import re
import time
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from chunk_grpo.config import Params, load_params, parse_params
from chunk_grpo.config.families import family_names
from chunk_grpo.config.models import EqualPlan, chunk_count
from chunk_grpo.config.notices import notices
from chunk_grpo.config.scorer_settings import ScorerSettings
from chunk_grpo.errors import ConfigError
from tests.params_edits import FUZZ, RAW, ROOT, drop, only_problem, paths, problems, put


def test_the_committed_parameters_are_valid_and_frozen() -> None:
    params = load_params(ROOT / "params.yaml")
    assert params.sampling.num_sde_steps == 16
    assert isinstance(params.train.seeds, tuple)
    with pytest.raises(ValidationError, match="frozen"):
        params.train.group_size = 3  # type: ignore[misc]


def only(kind: str) -> dict[str, object]:
    """One scorer of the toy world, of the eval split."""
    scorer = {"kind": kind, "splits": ["eval"], "batch_size": 8}
    return {"scorers": {kind: scorer}, "rewards": {kind: 1.0}}


A_FILE = {"path": "a.txt"} | dict.fromkeys(("hub_file", "revision", "prompt_field", "category_field", "limit"))
EDITED = A_FILE | {"picture_field": "source"}
OF_FILE: dict[str, object] = {"prompts.source": "file", "prompts.wise_count": 0, **only("shapes-vivid")}
OF_COCO: dict[str, object] = {"prompts.source": "coco", "prompts.wise_count": 0, **only("shapes-graded")}
COCO = {"kind": "coco", "count": 6, "seed": 0}
OF_EDITS: dict[str, object] = {"prompts.source": "shapes-edits", "prompts.wise_count": 0, **only("shapes-edit")}
LEGACY: dict[str, object] = {"kind": "wise", "version": "legacy", "paths": ["a.json"], "rewritten": []}
LEGACY |= {"missing_ids": "refuse", "count": None}
WISE: dict[str, object] = {"kind": "wise", "splits": ["more"], "batch_size": 8, "protocol": "legacy"}
WISE |= {"judge": "a-model", "instructions": None, "request": {}, "base_url": "http://127.0.0.1:8000/v1"}
WISE |= {"api_key_variable": None, "concurrency": 4, "attempts": 3, "timeout_seconds": 60.0, "answers": ".a"}
EXTERNAL = {"kind": "external", "source": "a:b", "version": 1, "options": {}, "splits": ["eval"], "batch_size": 8}
STARS = {"kind": "number", "pattern": "([1-5])", "lowest": 1.0, "highest": 5.0, "scale": "judge"}
ASKED = {name: value for name, value in WISE.items() if name not in ("protocol", "instructions")}
ASKED |= {"kind": "vlm-judge", "splits": ["eval"], "system": None, "template": "A {prompt}?"}
ASKED |= {"template_file": None, "image": "before", "reading": STARS}
LISTED = {name: value for name, value in ASKED.items() if name not in ("template_file", "reading")}
LISTED |= {"kind": "questions", "splits": ["more"], "template": "{question}"}
DPG: dict[str, object] = {"kind": "dpg", "path": "dpg_bench.csv", "count": None}
QUANTISED = {"model.base_precision": "nf4", "train.lora": {"rank": 4, "alpha": 4.0, "targets": ["to_q"]}}
SWAPPED = {"model.block_swap": 1, "train.lora": QUANTISED["train.lora"], "train.gradient_checkpointing": True}
JUDGED: dict[str, object] = {"prompts.benchmarks.more": LEGACY, "scorers.judge": WISE}


def test_a_kind_of_scorer_declares_its_class_its_network_and_its_scale() -> None:
    with pytest.raises(TypeError, match="Forgetful must declare NETWORK, SCALE, SCORER"):

        class Forgetful(ScorerSettings):
            kind: typing.Literal["forgetful"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("train.clip_range", -1, ": must be > 0, got -1"),
        ("train.clip_range", 1.5, ": must be < 1, got 1.5"),
        ("train.fraction", 1.01, ": must be <= 1, got 1.01"),
        ("train.group_size", 1, ": must be >= 2, got 1"),
        ("train.group_size", 2.5, ": must be a whole number, got 2.5"),
        ("train.group_size", "8", ": must be a whole number, got '8'"),
        ("train.group_size", True, ": must be a whole number, got true"),
        ("train.learning_rate", "1e-4", ": must be a number, got '1e-4'"),
        ("train.learning_rate", float("nan"), ": must be a finite number, got nan"),
        ("train.same_noise_in_group", 1, ": must be true or false, got 1"),
        ("train.seeds", 3, ": must be a list, got 3"),
        ("train.seeds", [], ": must not be empty"),
        ("train.seeds", [0, -1], "[1]: must be >= 0, got -1"),
        ("train.heldout", 5, ": must be a mapping, got 5"),
        ("train", None, ": must be a mapping, got null"),
        ("model.dtype", "float16", ": must be one of 'float32' or 'bfloat16', got 'float16'"),
        (
            "model.family",
            "flix",
            f": must be one of {', '.join(family_names())}, or a module of yours, such as package.module, got 'flix'",
        ),
        ("model.height", 50, ": must be a multiple of 8, got 50"),
        ("model.revision", 12, ": must be text, got 12"),
        ("chunks.plans.listed.sizes", [2, 0, 14], "[1]: must be > 0, got 0"),
        ("chunks.plans.listed.kind", "list", ": must be one of 'step', 'single', 'listed', "),
        ("rewards", {}, ": must not be empty"),
        ("trackers", ["comet"], "[0]: must be one of 'tensorboard', 'wandb' or 'mlflow', got 'comet'"),
        ("train.offload", ["vae", "vae"], ": each value once, got 'vae' 2 times"),
        ("train.guidance_gradient", "conditional", ": needs sampling.cfg_scale above 1, without which there is one"),
        ("train.ema_warmup", True, ": needs train.ema_decay, whose start it changes, got true"),
        ("train.heldout.scorers", [3], "[0]: must be text, got 3"),
        ("rewards.shapes-vivid", -0.5, ": must be > 0, got -0.5"),
        ("scorers.own", EXTERNAL | {"refusals": 1.1}, ".refusals: must be <= 1, got 1.1"),
        ("variants", [], ": must be a mapping of names, got []"),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_range_is_named(path: str, value: object, message: str) -> None:
    assert only_problem({path: value}).startswith(f"{path}{message}")


def test_a_variant_name_must_fit_into_a_file_name() -> None:
    rule = "must be lower-case letters, digits, - and _, with a letter or digit first"
    variant = RAW["variants"]["chunk"]
    assert problems(put("variants.Chunk/2", variant)) == [f"variants.Chunk/2: {rule}, got 'Chunk/2'"]
    assert problems(put("variants", {"a" * 41: variant})) == [
        f"variants.{'a' * 41}: must have at most 40 characters, got {'a' * 41!r}"
    ]


def test_misspelt_key_error_suggests_nearest_valid_key() -> None:
    misspelt = (drop("train.clip_range"), put("train.clip_rang", 1e-4))
    assert problems(*misspelt) == ["train.clip_rang: unknown key; did you mean 'clip_range'?"]
    for key in ("reward_attempts", "reward_wait"):  # keys of an earlier release
        assert problems(put(f"train.{key}", 3)) == [
            f"train.{key}: replaced by reward_away_seconds, the seconds for which a scorer may be away (900 by "
            "default); remove it"
        ]
    assert problems(put("reprot", {})) == ["reprot: unknown key; did you mean 'report'?"]
    plan = put("chunks.plans.guided", {"kind": "guided", "num_chunk": 4})
    assert problems(plan) == ["chunks.plans.guided.num_chunk: unknown key; did you mean 'num_chunks'?"]
    assert problems(put("encode.xyz", 1)) == ["encode.xyz: unknown key; known here: batch_size"]


def test_a_missing_key_is_named() -> None:
    assert problems(drop("train.clip_range")) == ["train.clip_range: required, but missing"]
    assert problems(drop("generate")) == ["generate: required, but missing"]
    assert problems(drop("chunks.plans.listed.kind")) == ["chunks.plans.listed.kind: required, but missing"]


def test_missing_optional_key_gets_default_and_notice() -> None:
    given = copy.deepcopy(RAW)
    del given["train"]["kl_coef"], given["train"]["heldout"]["every"], given["prompts"]["checks"]
    del given["train"]["ema_decay"]  # null: not listed
    given["encode"] = {}
    params = parse_params(given)
    assert (params.train.kl_coef, params.train.heldout.every, params.encode.batch_size) == (0.0, 10, 8)
    assert next(iter(notices(params))) == (
        'left out, so with their defaults: prompts.checks = {"records": "refuse", "characters": "refuse", '
        '"duplicates": "drop", "empty": "refuse", "spaces": "strip", "too_long": "keep", "pictures": "refuse", '
        '"shared": "refuse"}, '
        "encode.batch_size = 8, train.kl_coef = 0.0, train.heldout.every = 10"
    )
    listed = {**RAW, "encode": {"batch_size": 8}}
    assert parse_params(listed).encode == params.encode  # equal to the value that is given


def test_keys_that_dvc_reads_cannot_be_left_out() -> None:
    """DVC itself takes names of stages from params.yaml; a default would not help."""
    text = (ROOT / "dvc.yaml").read_text()
    named = set(re.findall(r"\$\{([a-z_.]+)\}", text))
    sections = {name for name in named if name.partition(".")[0] in Params.model_fields}
    assert {"train.seeds", "pools.score", "variants"} <= sections
    for name in sections:
        model: type[BaseModel] = Params
        for key in name.split("."):
            field = model.model_fields[key]
            assert field.is_required(), name
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                model = field.annotation


def test_all_problems_come_in_one_message() -> None:
    found = problems(
        put("train.clip_range", -1),
        put("train.group_size", 1),
        put("sampling.num_steps", 18),
        put("generate.base_steps", 60),
    )
    assert found == [
        "train.group_size: must be >= 2, got 1",
        "train.clip_range: must be > 0, got -1",
        "chunks.plans.listed.sizes: must sum to sampling.num_steps - 1 = 17 (the last step carries no noise "
        "and is not trained), got [2, 3, 4, 7], which sums to 16",
        "generate.base_steps: must be <= generate.num_steps = 50, got 60",
    ]


WORDS = "must be a name in scorers, got"
OF_WISE = "judges prompts of wise only"


@pytest.mark.parametrize(
    ("edits", "path", "rule"),
    [
        ({"chunks.plans.listed.sizes": [2, 3, 4, 8]}, "chunks.plans.listed.sizes", "which sums to 17"),
        ({"chunks.plans.equal-4.chunk_size": 17}, "chunks.plans.equal-4.chunk_size", "num_steps - 1 = 16"),
        ({"chunks.plans.own": {"kind": "adaptive", "max_size": 17}}, "chunks.plans.own.max_size", "<= sampling."),
        ({"chunks.plans.guided.num_chunks": 9}, "chunks.plans.guided.num_chunks", "must be <= 8: 2 steps a"),
        ({"rewards": {"shapes-grade": 1.0}}, "rewards.shapes-grade", f"{WORDS} 'shapes-grade'; did you mean"),
        ({"executors.hpsv3": {"kind": "in-process", "device": None}}, "executors.hpsv3", f"{WORDS} 'hpsv3'"),
        ({"scorers.shapes-exact.kind": "shapes-exakt"}, "scorers.shapes-exact.kind", "must be one of 'shapes-"),
        ({"scorers.judge": ASKED | {"template_file": "a"}}, "scorers.judge.template", "got template and template_"),
        ({"scorers.judge": ASKED | {"template": None}}, "scorers.judge.template", "got null for both"),
        ({"scorers.judge": ASKED | {"template": "{x}"}}, "scorers.judge.template", "character 1: {x} is no field"),
        ({"scorers.judge": ASKED | {"reading": STARS | {"highest": 1.0}}}, "scorers.judge.reading.highest",
         "must be above lowest = 1, got 1"),
        ({"scorers.judge": ASKED | {"reading": STARS | {"pattern": "[1-5]"}}}, "scorers.judge.reading.pattern",
         "must have one group, the number"),
        ({"scorers.judge": LISTED | {"splits": ["eval"]}}, "scorers.judge.splits[0]",
         "questions judges prompts of dpg or file only, got 'eval', whose prompts are of shapes"),
        ({"scorers.judge": LISTED | {"template": "{prompt}?"}, "prompts.benchmarks.more": DPG},
         "scorers.judge.template", "must have the field {question}"),
        ({"scorers.shapes-exact.splits": ["train"]}, "scorers.shapes-exact.splits[0]", "with images: eval, wise"),
        ({"prompts.wise_count": 0, **only("shapes-exact"), "scorers.shapes-exact.splits": ["eval", "wise"]},
         "scorers.shapes-exact.splits[1]", "with images: eval, got 'wise'"),
        ({"scorers.shapes-exact.splits": ["eval"] * 2}, "scorers.shapes-exact.splits", "each value once, got 'eval'"),
        ({"scorers.shapes-graded.splits": ["wise"]}, "scorers.shapes-graded.splits", "must hold eval for a scorer"),
        ({"train.heldout.scorers": ["shapes-exakt"]}, "train.heldout.scorers[0]", f"{WORDS} 'shapes-exakt'"),
        ({"train.heldout.scorers": ["shapes-exact"] * 2}, "train.heldout.scorers", "each value once"),
        ({"train.heldout.scorers": ["shapes-vivid"]}, "train.heldout.scorers[0]", "must not be trained on"),
        ({"trackers": ["wandb"] * 2}, "trackers", "each value once"),
        ({"train.seeds": [0, 1, 1]}, "train.seeds", "each value once, got 1 2 times"),
        ({"model.base_precision": "int8"}, "model.base_precision", "needs train.lora, since quantised weights cannot"),
        ({**QUANTISED, "train.compile": True}, "model.base_precision", "must be null with train.compile: true, which"),
        ({**QUANTISED, "train.shard_weights": True}, "model.base_precision", "set train.shard_weights: false, or null"),
        ({**SWAPPED, "train.lora": None}, "model.block_swap", "needs train.lora, since swapped weights cannot be"),
        ({**SWAPPED, "train.compile": True}, "model.block_swap", "must be 0 with train.compile: true, which"),
        ({**SWAPPED, "train.shard_weights": True}, "model.block_swap", "set train.shard_weights: false, or 0 here"),
        ({**SWAPPED, "model.base_precision": "int8"}, "model.block_swap", "must be 0 with model.base_precision, got 1"),
        ({**SWAPPED, "train.gradient_checkpointing": 0.5}, "model.block_swap", "needs train.gradient_checkpointing"),
        ({"generate.base_steps": 51}, "generate.base_steps", "must be <= generate.num_steps = 50, got 51"),
        ({"train.updates_per_iteration": 3}, "train.prompts_per_iteration", "must be divisible by train.updates"),
        ({"train.prompts_per_iteration": 400}, "train.prompts_per_iteration", "<= prompts.train_count = 300"),
        ({"train.heldout.num_prompts": 97}, "train.heldout.num_prompts", "<= prompts.eval_count = 96, got 97"),
        ({"profile.num_prompts": 301}, "profile.num_prompts", "<= prompts.train_count = 300, got 301"),
        ({"report.grid_prompts": 97}, "report.grid_prompts", "<= prompts.eval_count = 96, got 97"),
        (OF_FILE, "prompts.train_file", "required with source: file, got null"),
        ({"prompts.train_file": A_FILE}, "prompts.train_file", "must be null with source: shapes"),
        ({"prompts.eval_file": A_FILE}, "prompts.eval_file", "must be null with source: shapes"),
        ({**OF_FILE, "prompts.train_file": A_FILE, "prompts.wise_count": 24}, "prompts.wise_count", "must be 0"),
        ({**OF_FILE, "prompts.train_file": A_FILE | {"revision": "v2"}}, "prompts.train_file.revision", "null with"),
        ({"prompts.benchmarks.more": {"kind": "file", "file": A_FILE | {"revision": "v2"}, "count": None}},
         "prompts.benchmarks.more.file.revision", "must be null without hub_file"),
        ({**OF_FILE, "prompts.train_file": EDITED | {"hub_file": "b.csv"}}, "prompts.train_file.picture_field",
         "must be null unless the file is on a local disk"),
        ({**OF_FILE, "prompts.train_file": EDITED | {"path": "s3://a/b.csv"}}, "prompts.train_file.picture_field",
         "must be null unless the file is on a local disk"),
        ({**OF_FILE, "prompts.train_file": EDITED, "prompts.eval_file": A_FILE}, "prompts.eval_file.picture_field",
         "must have pictures to edit, as prompts.train_file has; set picture_field, or null for all"),
        ({**OF_FILE, "prompts.train_file": EDITED, "prompts.benchmarks.more": COCO}, "prompts.benchmarks.more",
         "must have pictures to edit, as prompts.train_file has"),
        ({**OF_EDITS, "prompts.benchmarks.more": COCO}, "prompts.benchmarks.more",
         "must have pictures to edit, as prompts.source has"),
        ({**OF_EDITS, "model.width": 64}, "model.width", "must be 32 with prompts.source: shapes-edits, got 64"),
        ({**OF_EDITS, "generate.height": 16}, "generate.height", "must be 32 with prompts.source: shapes-edits"),
        ({**OF_EDITS, **only("shapes-exact")}, "scorers.shapes-exact.splits[0]",
         "judges prompts of shapes only, got 'eval', whose prompts are of shapes-edits"),
        (only("shapes-edit"), "scorers.shapes-edit.splits[0]", "judges prompts of shapes-edits only, got 'eval'"),
        (OF_COCO, "scorers.shapes-graded.splits[0]", "judges prompts of shapes only, got 'eval'"),
        ({**JUDGED, "train.heldout.scorers": ["judge"]}, "train.heldout.scorers[0]", OF_WISE),
        ({"prompts.benchmarks.wise": COCO}, "prompts.benchmarks.wise", "the other splits: train, eval, wise"),
        ({"prompts.benchmarks.more": COCO, "scorers.shapes-exact.splits": ["eval", "more"]},
         "scorers.shapes-exact.splits[1]", "judges prompts of shapes only, got 'more'"),
        ({**JUDGED, "prompts.benchmarks.more": COCO}, "scorers.judge.splits[0]", OF_WISE),
        ({**JUDGED, "prompts.benchmarks.more": LEGACY | {"version": "verified"}}, "scorers.judge.protocol", "verified"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_together_are_named(edits: dict[str, object], path: str, rule: str) -> None:
    found = only_problem(edits)
    assert found.startswith(f"{path}: ")
    assert rule in found


@pytest.mark.parametrize(("size", "count"), [(1, 16), (3, 6), (4, 4), (16, 1)])
def test_chunks_of_an_equal_plan_are_counted_with_the_shorter_last_one(size: int, count: int) -> None:
    assert chunk_count(EqualPlan(kind="equal", chunk_size=size), 16) == count


def test_any_scorer_may_judge_prompts_of_wise() -> None:
    """Only WISE's own scorer has a protocol that must fit them."""
    judge = put("scorers.judge", ASKED | {"splits": ["more"]})
    assert problems(put("prompts.benchmarks.more", LEGACY), judge) == []


@pytest.mark.parametrize("value", FUZZ, ids=repr)
def test_any_value_at_any_key_gives_a_named_error(value: object) -> None:
    """No value at any key leads to another error than ConfigError with this key, or a rule over it, named."""
    for path in paths(RAW):
        assert all(": " in line for line in problems(put(path, value)))


def test_a_misspelt_key_anywhere_is_named() -> None:
    for path in paths(RAW):
        if not path.split(".")[-1].isdecimal():  # a place in a list has no name to misspell
            assert all(": " in line for line in problems(put(f"{path}x", 1.5)))


def write(folder: Path, content: bytes) -> Path:
    path = folder / "params.yaml"
    path.write_bytes(content)
    return path


def fails(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_params(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"variants:\n  a: {plan: listed}\n  a: {plan: step}\n", ", line 3: the key 'a' appears twice in one mapping"),
        ("report: {}\ntitle: Gr\xfc\xdfe\n".encode("latin-1"), ", line 2: must be UTF-8, got the byte 0xfc."),
        (b"composed_from: tiny\ntrain: [1, 2\n", ", line 3: not YAML: expected ',' or ']'"),
        (b"a: 1\n\tb: 2\n", ". Mend this line or the one above it; conf/preset/tiny.yaml describes every key."),
        (b"<<<<<<< HEAD\na: 1\n=======\na: 2\n>>>>>>> other\n", "The file has conflict markers of git (<<<<<<<)"),
        (b"a: \x00\n", "not YAML"),
        (b"", ": must be a mapping of sections, got null."),
        (b"[1, 2]\n", ": must be a mapping of sections, got [1, 2]"),
    ],
)
def test_unusable_file_error_names_the_line(content: bytes, message: str, tmp_path: Path) -> None:
    assert message in fails(write(tmp_path, content))
    assert fails(tmp_path / "other.yaml").startswith(f"{tmp_path}/other.yaml: no such file. Run from the")
    assert fails(tmp_path) == f"{tmp_path}: cannot be read (Is a directory)."


DEEP = "must have at most 50 levels, got more; an alias must not be inside its own anchor"
LONG = "must have at most 100000 values with aliases expanded, got more; use fewer aliases"
BOMB = "\n".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}' if level else '1'] * 10)}]" for level in range(10))
"""Ten levels of ten aliases: ten billion values."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("model: &m [*m]\n", DEEP, id="a list that holds itself"),
        pytest.param("model: " + "[" * 600 + "]" * 600 + "\n", DEEP, id="600 levels"),
        pytest.param(BOMB, LONG, id="aliases of aliases"),
    ],
)
def test_oversized_yaml_is_refused_quickly(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text.encode())
    begin = time.process_time()
    assert fails(path) == f"{path}: {message}"
    assert time.process_time() - begin < 30  # minutes without the bound


def test_aliases_may_still_be_used(tmp_path: Path) -> None:
    text = (ROOT / "params.yaml").read_text()
    assert text.count("height: 32\n") == text.count("width: 32\n") == 2
    text = text.replace("height: 32\n", "height: &side 32\n", 1).replace("width: 32\n", "width: *side\n")
    assert load_params(write(tmp_path, text.encode())) == load_params(ROOT / "params.yaml")


def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    """YAML 1.2, as DVC: 1e-4 is a number, where a YAML 1.1 parser reads text."""
    text = re.sub(r"learning_rate: .*", "learning_rate: 1e-4", (ROOT / "params.yaml").read_text())
    assert load_params(write(tmp_path, text.encode())).train.learning_rate == 1e-4


def test_the_cause_is_named_before_what_follows_from_it() -> None:
    file = {"path": "a.csv", "hub_file": None, "revision": None, "prompt_field": None, "category_field": None}
    own = (put("prompts.source", "file"), put("prompts.train_file", {**file, "limit": None}))
    first, *others = problems(*own, put("prompts.wise_count", 0))
    assert "shapes-exact judges prompts of shapes only, got 'eval'" in first and first.endswith("or the scorer")
    assert any("must be a split with images: eval, got 'wise'" in other for other in others)

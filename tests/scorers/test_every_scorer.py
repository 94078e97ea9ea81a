"""What every built-in scorer must do; the files of single scorers test their formulas against originals.

Scores are cached under a scorer's version, not under its code. So code that scores differently must raise the version:
then a test fails until the new version's scores are written down here, and old scores are not mixed with new ones.
"""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from chunk_grpo.config import load_params
from chunk_grpo.config.scorer_settings import Weights
from chunk_grpo.config.scorers import AnyScorer, PreservedScorer
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import as_pictures
from chunk_grpo.scorers.base import ScoreBatch
from chunk_grpo.scorers.contract import check_contract
from chunk_grpo.scorers.running.registry import make_scorer
from chunk_grpo.shapes.edits import Edit
from chunk_grpo.shapes.prompts import all_prompts
from chunk_grpo.shapes.render import render
from chunk_grpo.shapes.scene import Scene, Thing
from tests.scorers.checkpoints_imagereward import WORDS
from tests.scorers.drawn_text import all_drawn
from tests.scorers.judge_server import JudgeServer
from tests.scorers.random_models import make_models
from tests.scorers.samples import reconfigure
from tests.shapes_scorers import SHAPES_SCORERS, shapes_scorer
from tests.test_presets import compose

SCENES = [
    Scene("white", (Thing("circle", "red", 16, 16, 5),)),
    Scene("black", (Thing("square", "green", 8, 8, 5), Thing("square", "blue", 24, 24, 5))),
    Scene("white", (Thing("cross", "purple", 9, 24, 4), Thing("triangle", "yellow", 22, 7, 6))),
]
PICTURES = as_pictures(render(SCENES).numpy())
CIRCLE = Thing("circle", "green", 16, 16, 5)
EDITS = [
    Edit("make the circle red", "recolour", "red", Scene("white", (CIRCLE,))),
    Edit("make the green square a cross", "replace", "cross", SCENES[1]),
    Edit("remove the circle", "remove", None, Scene("white", (replace(CIRCLE, x=9, y=8), *SCENES[2].things))),
]
"""The first and third picture are right edits; the second one is not edited."""
BY_TEXT = {spec.prompt: spec for spec in all_prompts()}
SPECS = [BY_TEXT[text] for text in ("a red circle", "two squares", "a yellow triangle")]

VERSIONS: dict[str, tuple[int, list[float]]] = {
    "shapes-exact": (1, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]),
    "shapes-graded": (
        1,
        [0.994138, 0.359935, 4.76884e-06, 3.58048e-07, 1.0, 1.09819e-07, 5.30616e-05, 0.333826, 0.892005],
    ),
    "shapes-vivid": (1, [0.210172, 0.210172, 0.210172, 0.428922, 0.428922, 0.428922, 0.295343, 0.295343, 0.295343]),
    "shapes-edit": (1, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
    "shapes-edit-graded": (1, [0.994127, 0.0, 0.0, 0.0, 0.206928, 0.0, 0.0, 0.0, 0.97754]),
    "clip": (1, [0.281104, 0.259677, -0.0277858]),
    "pickscore": (1, [28.1112, 25.9685, -2.77867]),
    "imagereward": (1, [5.55347, -0.496454, -4.25025]),
    "hpsv2": (1, [-0.023428, -0.0576581, -0.0699346]),
    "hpsv3": (1, [-0.0691885, -1.79009, 1.15027]),
    "aesthetic": (1, [-13.3059, -8.81734, -14.3246]),
    "geneval": (1, [1.0, 0.0, 0.0]),
    "wise": (1, [0.55, 1.0, 0.9]),
    "ocr": (1, [1.0, 0.75, 0.0]),
    "vlm-judge": (1, [0.0364583, 0.171875, 0.414063]),
    "questions": (1, [0.0, 0.75, 0.0]),
    "preserved": (1, [0.123351, 0.130862, 0.132182]),
}
"""Kind to version and scores."""

FILES = {
    "clip": {"model": ["config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"]},
    "pickscore": {
        "model": ["config.json", "model.safetensors"],
        "processor": ["tokenizer.json", "preprocessor_config.json"],
    },
    "imagereward": {"model": ["ImageReward.pt", "med_config.json"], "tokenizer": ["vocab.txt"]},
    "hpsv2": {"model": ["HPS_v2.1_compressed.pt"], "tokenizer": ["tokenizer.json", "tokenizer_config.json"]},
    "hpsv3": {
        "model": ["HPSv3.safetensors"],
        "backbone": ["config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"],
    },
    "aesthetic": {
        "model": ["sac+logos+ava1-l14-linearMSE.pth"],
        "encoder": ["config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json"],
    },
    "geneval": {
        "detector": ["config.json", "preprocessor_config.json", "model.safetensors"],
        "classifier": ["config.json", "tokenizer.json", "model.safetensors"],
    },
}
"""Kind, field of its settings, and the files that the field's folder must hold."""

PRESERVED = PreservedScorer(kind="preserved", measure="structure", splits=("eval",), batch_size=4)

JUDGES = ("wise", "vlm-judge", "questions")
"""Kinds that ask an endpoint."""

WEIGHTS = [
    ("clip", "model", "visual_projection.weight"),
    ("imagereward", "model", "blip.visual_encoder.blocks.1.attn.proj.bias"),
    ("hpsv2", "model", "visual.transformer.resblocks.1.attn.in_proj_bias"),
    ("hpsv3", "model", "model.layers.1.mlp.up_proj.weight"),
    ("aesthetic", "model", "layers.6.weight"),
    ("geneval", "detector", "class_predictor.bias"),
]
"""Kind, field of its settings, and a weight of that model; one for each function that loads weights."""

UNREADABLE_BACKBONE = r"backbone: a file in .*backbone cannot be read \(\w+"

SMALLER = {"size": 24, "crop_size": 24}
DAMAGE = [
    ("clip", "model", "config.json", {"model_type": "siglip"}, "model: .* of type clip, but .*'siglip'"),
    ("clip", "model", "config.json", "version https://git-lfs", "model: .*config.json cannot be read"),
    ("clip", "model", "tokenizer.json", "{}", "model: .* holds no readable CLIP tokenizer"),
    ("clip", "model", "config.json", {"text_config.eos_token_id": 7}, "model: .*ends .* number 519; .*needs 7"),
    ("pickscore", "processor", "preprocessor_config.json", SMALLER, "processor: .*24x24 .* takes 32x32"),
    ("imagereward", "model", "med_config.json", {"num_hidden_layers": 1}, "model: .*layer.1.* is unknown"),
    ("imagereward", "model", "med_config.json", {"num_attention_heads": ...}, "model: .* no Image.*_heads"),
    (
        "imagereward",
        "tokenizer",
        "tokenizer.json",
        "{}",
        r"tokenizer: .* no readable BERT tokenizer \(\w+.*Fetch the fil",
    ),
    ("imagereward", "tokenizer", "vocab.txt", "\n".join(WORDS[:-1]), f"tokenizer: .* {len(WORDS) + 1} tok"),
    ("hpsv3", "backbone", "config.json", {"image_token_id": 5}, "backbone.*image_token_id 5"),
    ("hpsv3", "backbone", "config.json", "{", UNREADABLE_BACKBONE),
    ("hpsv3", "backbone", "preprocessor_config.json", "[]", UNREADABLE_BACKBONE),
    ("hpsv3", "backbone", "tokenizer.json", "{}", UNREADABLE_BACKBONE),
    ("geneval", "detector", "preprocessor_config.json", "{", "detector: .* no Mask2Former image processor"),
]
"""Kind, field of its settings, a file, its new text or other values of its JSON (... for none), and what is said."""

CHANGES = [
    (lambda weights, name: weights.pop(name), "is missing"),
    (lambda weights, name: weights.update({f"{name}.x": weights[name].clone()}), "x is unknown to the model"),
    (lambda weights, name: weights.update({name: weights[name][:-1].clone()}), r"is \[.*\] in place of \["),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("every-scorer")
    make_models(folder / "data" / "random-models")
    return folder


@pytest.fixture(scope="module")
def settings(folder):
    return load_params(compose("random-scorers", folder)).scorers


@pytest.fixture
def make(folder, settings, monkeypatch, models):
    """Makes a scorer of the preset random-scorers with changes of its settings."""
    monkeypatch.chdir(folder)
    made = []
    with JudgeServer() as judge:

        def make(kind, key=None, **changes):
            if kind in SHAPES_SCORERS:
                return shapes_scorer(kind, **changes)
            if kind == "preserved":
                return make_scorer(kind, PRESERVED.model_copy(update=changes))
            changes |= {"base_url": judge.url} if kind in JUDGES else {}
            made.append(make_scorer(key or kind, settings[kind].model_copy(update=changes)))
            return made[-1]

        yield make
    for scorer in made:
        scorer.close()
    assert not models.users()


def test_every_built_in_scorer_is_pinned():
    sections = get_args(get_args(AnyScorer)[0])
    kinds = {kind for section in sections for kind in get_args(section.model_fields["kind"].annotation)}
    assert set(VERSIONS) == kinds - {"external"}


def test_names(make):
    models = {"clip": "clip/clip", "hpsv2": "hpsv2.1", "geneval": "geneval-hf/detector"}
    models |= {
        "preserved": "preserved/structure",
        "wise": "wise/legacy/tiny-judge",
        "vlm-judge": "vlm-judge/tiny-judge",
        "questions": "questions/tiny-judge",
    }
    assert {kind: make(kind).name for kind in VERSIONS} == {kind: models.get(kind, kind) for kind in VERSIONS}


# The contract reads 16 pictures, each in 0.3 s by rapidocr; test_ocr.py has words in the default tier.
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind == "ocr" else []) for kind in VERSIONS]
)
def test_a_version_scores_what_it_always_scored_and_keeps_the_contract(kind, make):
    version, values = VERSIONS[kind]
    scorer = make(kind, batch_size=2)
    check_contract(scorer, batch(kind))
    assert scorer.version == version
    assert scorer.score(batch(kind)).values == pytest.approx(values, rel=1e-4)


@pytest.mark.parametrize("kind", VERSIONS)
def test_images_that_are_too_narrow_are_refused(kind, make):
    scorer, given = make(kind), batch(kind)
    for height, width in ((8, 2048), (2048, 8), (1, 51), (0, 0)):
        images = np.zeros((len(given), height, width, 3), dtype=np.uint8)
        reason = f"{width} x {height} pixels: the longer side must be at most 50 times the shorter one"
        narrow = replace(given, images=images, sources=None if given.sources is None else images)
        assert scorer.score(narrow).refused == dict.fromkeys(range(len(given)), reason)


@pytest.mark.parametrize("kind", FILES)
def test_narrow_images_are_scored(kind, make):
    scorer, given = make(kind), batch(kind)
    for shape in ((1, 50), (50, 1)):
        images = np.zeros((len(given), *shape, 3), dtype=np.uint8)
        assert np.isfinite(scorer.score(replace(given, images=images)).values).all()


@pytest.mark.parametrize("kind", FILES)
def test_equal_models_are_loaded_once_and_dropped_by_the_last_that_closes(kind, make, models):
    first, second, other = make(kind), make(kind, key="second"), make(kind, dtype="bfloat16")
    first.check()
    first.spec_hash()
    assert not models.users()
    for scorer in (first, first, second, other):
        scorer.score(batch(kind))
    assert sorted(set(models.users().values())) == [1, 2]
    first.close()
    first.close()
    assert set(models.users().values()) == {1}
    assert np.isfinite(second.score(batch(kind)).values).all()
    second.close()
    other.close()
    assert not models.users()


def test_clip_scores_and_geneval_share_an_encoder(make, models):
    geneval, clip = make("geneval"), make("clip", model=make("geneval").settings.classifier)
    for scorer, kind in ((geneval, "geneval"), (clip, "clip")):
        scorer.score(batch(kind))
    assert sorted(models.users().values()) == [1, 2]


@pytest.fixture
def copied(folder, settings, tmp_path):
    """Copies the folder of one field of a kind's settings: (kind, field) -> the copy, and that field's setting."""

    def copied(kind, field):
        source = folder / getattr(settings[kind], field).checkpoint
        copy = Path(shutil.copytree(source, tmp_path / f"{field}-of-{kind}" / source.name))
        return copy, {field: Weights(checkpoint=str(copy), revision=None)}

    return copied


@pytest.mark.parametrize("kind", FILES)
def test_settings_and_files_make_the_identity_and_places_do_not(kind, make, copied):
    own = make(kind).spec_hash()
    for field in FILES[kind]:
        copy, setting = copied(kind, field)
        assert make(kind, **setting).spec_hash() == own
        path = copy / FILES[kind][field][0]
        path.write_bytes(path.read_bytes() + b" ")
        assert make(kind, **setting).spec_hash() != own
    assert make(kind, dtype="bfloat16").spec_hash() != own
    assert make(kind, batch_size=1, splits=("other",)).spec_hash() == own


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in FILES.items() for field in fields])
def test_a_missing_file_is_named_before_anything_is_loaded(kind, field, make, copied):
    copy, setting = copied(kind, field)
    scorer = make(kind, **setting)
    scorer.check()
    for name in FILES[kind][field]:
        (copy / name).rename(copy / "away")
        with pytest.raises(DataError, match=rf"scorers\.{kind}\.{field}: no file .*{re.escape(name)}"):
            scorer.check()
        (copy / "away").rename(copy / name)


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=["missing", "surplus", "another shape"])
@pytest.mark.parametrize(("kind", "field", "name"), WEIGHTS)
def test_weights_are_exactly_the_networks(kind, field, name, change, words, make, copied, models):
    copy, setting = copied(kind, field)
    path = weights_file(copy)
    content = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    change(content.get("state_dict", content), name)
    if path.suffix == ".safetensors":
        save_file(content, path, {"format": "pt"})
    else:
        torch.save(content, path)
    with pytest.raises(DataError, match=rf"scorers\.{kind}\.{field}: .*{name}.?{words}"):
        make(kind, **setting).score(batch(kind))
    assert str(copy) not in str(models.users())


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, field, _ in WEIGHTS])
def test_a_file_cut_short_is_refused(kind, field, make, copied):
    copy, setting = copied(kind, field)
    path = weights_file(copy)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=rf"scorers\.{kind}\.{field}: .*(cannot be read|no complete)"):
        make(kind, **setting).score(batch(kind))


@pytest.mark.parametrize(("kind", "field", "name", "change", "said"), DAMAGE)
def test_mismatched_configuration_is_refused(kind, field, name, change, said, make, copied):
    copy, setting = copied(kind, field)
    if isinstance(change, str):
        (copy / name).write_text(change)
    else:
        reconfigure(copy, name, lambda content: edit(content, change))
    with pytest.raises(DataError, match=rf"scorers\.{kind}\.{said}"):
        make(kind, **setting).score(batch(kind))


def edit(content, change):
    for key, value in change.items():
        part, _, last = key.rpartition(".")
        section = content[part] if part else content
        section[last] = value
        if value is ...:
            del section[last]


def weights_file(folder):
    (path,) = [path for path in folder.iterdir() if path.suffix in (".safetensors", ".pt", ".pth")]
    return path


def batch(kind: str) -> ScoreBatch:
    noise = np.random.default_rng(0).integers(0, 256, PICTURES.shape, dtype=np.uint8)
    pictures = (PICTURES // 2 + noise // 2) if kind == "geneval" else PICTURES
    metadata = [spec.metadata() for spec in SPECS]
    if kind == "geneval":
        metadata = [{"tag": "single_object", "include": [{"class": c, "count": 1}]} for c in ("person", "car", "dog")]
    if kind == "wise":
        metadata = [{"wise_id": number, "explanation": "what it shows"} for number in (1, 2, 3)]
    if kind == "ocr":
        pictures, metadata = all_drawn(["OPEN", "OPN", "12"]), [{"text": "OPEN"}] * 3
    if kind == "questions":
        listed = [{"id": n, "question": f"Is it {n}?", "parents": [1] if n > 1 else []} for n in (1, 2, 3, 4)]
        metadata = [{"questions": listed}] * 3
    prompts = [spec.prompt for spec in SPECS]
    if kind in ("shapes-edit", "shapes-edit-graded"):
        prompts, metadata = [edit.prompt for edit in EDITS], [edit.metadata() for edit in EDITS]
    whole = ScoreBatch(pictures, prompts, metadata, [0, 1, 2])
    if kind == "preserved":
        whole = replace(whole, sources=(pictures // 2 + noise // 2))
    if kind not in SHAPES_SCORERS:
        return whole
    # Every picture with every caption, so that wrong ones are graded too.
    captions = whole.rows([0, 1, 2] * 3)
    return ScoreBatch(np.repeat(pictures, 3, axis=0), captions.prompts, captions.metadata, captions.groups)

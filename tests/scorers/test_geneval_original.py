"""Our GenEval beside the original evaluator's own functions, on the same detections, crops and folders."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image

from chunk_grpo.image_files import encode_png
from chunk_grpo.scorers.geneval.colours import crop_object
from chunk_grpo.scorers.geneval.folders import read_results, write_prompt_folder
from chunk_grpo.scorers.geneval.records import CLASS_NAMES, COLOURS, RELATIONS, TAGS, parse_record
from chunk_grpo.scorers.geneval.rules import (
    Detections,
    Reason,
    Verdict,
    asked_colours,
    found_objects,
    judge,
    overall,
    relations,
    tag_means,
)
from tests.scorers.checkpoints_geneval import load_classifier, make_geneval
from tests.scorers.originals.geneval import evaluator, geneval_source, graded_original, packages, run_file, stand_in

pytestmark = pytest.mark.network

AT_THRESHOLDS = [np.nextafter(np.float32(limit), np.float32(side)) for limit in (0.3, 0.9) for side in (0, 1)] + [
    np.float32(0.3),
    np.float32(0.9),
]


def random_box(rng: Generator) -> NDArray[np.float32]:
    """Half of them on a coarse grid, so that centres coincide and offsets meet their margins exactly."""
    if rng.random() < 0.5:
        corner, sides = rng.integers(0, 8, 2) * 10, rng.integers(0, 5, 2) * 10
    else:
        corner, sides = rng.uniform(0, 400, 2), rng.uniform(0, 200, 2)
    return np.concatenate([corner, corner + sides]).astype(np.float32)


def random_detections(rng: Generator, names: list[str]) -> Detections:
    """Up to 24 of each of a few classes; no two scores are equal."""
    labels = np.concatenate([[CLASS_NAMES.index(name)] * int(rng.choice([0, 1, 2, 4, 24])) for name in names])
    scores = rng.permutation(np.linspace(0.2, 0.99, 2 * len(labels) + 1, dtype=np.float32))[: len(labels)]
    special = rng.permutation(len(labels))[: len(AT_THRESHOLDS)]
    scores[special] = rng.permutation(AT_THRESHOLDS)[: len(special)]
    boxes = np.stack([random_box(rng) for _ in labels]) if len(labels) else np.zeros((0, 4), np.float32)
    return Detections(labels.astype(np.int64), scores, boxes, np.zeros((len(labels), 1, 1), dtype=bool))


def random_record(rng: Generator, names: list[str]) -> dict[str, Any]:
    include: list[dict[str, Any]] = []
    for number in range(rng.integers(1, 4)):
        clause: dict[str, Any] = {"class": str(rng.choice(names)), "count": int(rng.choice([1, 1, 1, 2, 3]))}
        if rng.random() < 0.4:
            clause["color"] = str(rng.choice(COLOURS[:3]))
        if number and rng.random() < 0.6:
            clause["position"] = [str(rng.choice(RELATIONS)), int(rng.integers(0, number))]
        include.append(clause)
    record: dict[str, Any] = {"tag": str(rng.choice(TAGS)), "include": include, "prompt": "a photo"}
    if rng.random() < 0.4:
        limits = rng.integers(1, 6, rng.integers(1, 3))
        record["exclude"] = [{"class": str(rng.choice(names)), "count": int(limit)} for limit in limits]
    return record


def as_mmdet(detections: Detections) -> tuple[list[NDArray[np.float32]], list[list[NDArray[np.bool_]]]]:
    """Boxes with scores, and masks, of each class."""
    rows = [np.flatnonzero(detections.labels == label) for label in range(len(CLASS_NAMES))]
    table = np.concatenate([detections.boxes, detections.scores[:, None]], axis=1)
    return [table[part] for part in rows], [list(detections.masks[part]) for part in rows]


def in_original_words(reason: Reason) -> str:
    """The line that the original writes for it."""
    name, expected, found = reason.class_name, reason.expected, reason.found
    if reason.rule == "include":
        return f"expected {name}>={expected}, found {found}"
    if reason.rule == "exclude":
        return f"expected {name}<{expected.removeprefix('fewer than ')}, found {found}"
    if reason.rule == "target":
        return f"no target for {name} to be {expected}"
    if reason.rule == "position":
        return f"expected {name} {expected} target, found {found.replace('no relation', '')} target"
    count, colour = expected.split(" ")
    seen = {part.split(" ")[1]: part.split(" ")[0] for part in found.split(", ")}
    return f"expected {colour} {name}>={count}, found {seen.get(colour, 0)} {colour}; and {found}"


def sorted_relations(text: str) -> str:
    """It joins two relations in the order of a set, which differs from process to process."""
    lines = text.split("\n")
    return "\n".join(
        f"{head}, found {' and '.join(sorted(tail.removesuffix(' target').split(' and ')))} target"
        if tail.endswith(" target")
        else line
        for line in lines
        for head, _, tail in [line.partition(", found ")]
    )


def our_verdict(detections: Detections, record: Mapping[str, Any], colour_of: Mapping[float, str]) -> Verdict:
    parsed = parse_record(record)
    found = found_objects(detections, 0.9 if parsed.tag == "counting" else 0.3, 16)
    colours = {asked: colour_of[float(detections.scores[asked[1]])] for asked in asked_colours(parsed, found)}
    return judge(parsed, found, detections.boxes, colours, 0.1)


@pytest.fixture(scope="module")
def original() -> Any:
    return evaluator()


def test_class_and_colour_names_equal_original(original):
    assert tuple(original.classnames) == CLASS_NAMES
    assert tuple(original.COLORS) == COLOURS


def test_official_records_are_read():
    path = geneval_source() / "prompts" / "evaluation_metadata.jsonl"
    records = [parse_record(json.loads(line)) for line in path.read_text().splitlines()]
    counts = Counter(record.tag for record in records)
    assert counts == dict(zip(TAGS, (80, 99, 80, 94, 100, 100), strict=True))


def test_verdicts_and_reasons(original, tmp_path, monkeypatch):
    picture = str(tmp_path / "picture.png")
    Image.new("RGB", (1, 1)).save(picture)
    rng = np.random.default_rng(0)
    verdicts, rules = Counter[bool](), Counter[str]()
    for _ in range(6000):
        names = [str(name) for name in rng.choice(CLASS_NAMES, 3, replace=False)]
        detections, record = random_detections(rng, names), random_record(rng, names)
        colour_of = {float(score): str(rng.choice(COLOURS[:3])) for score in detections.scores}
        monkeypatch.setattr(original, "inference_detector", lambda *_, d=detections: as_mmdet(d))
        monkeypatch.setattr(
            original,
            "color_classification",
            lambda image, objects, name, c=colour_of: [c[float(box[4])] for box, _ in objects],
        )
        result = original.evaluate_image(picture, record)
        verdict = our_verdict(detections, record, colour_of)
        lines = "\n".join(in_original_words(reason) for reason in verdict.reasons)
        assert verdict.correct == result["correct"]
        assert sorted_relations(lines) == sorted_relations(result["reason"])
        assert verdict.num_objects == sum(len(boxes) for boxes in json.loads(result["details"]).values())
        verdicts[verdict.correct] += 1
        rules.update(reason.rule for reason in verdict.reasons)
    print(verdicts, rules)  # noqa: T201  # quoted in docs/scorers.md
    assert min(verdicts.values()) > 500
    assert min(rules[rule] for rule in ("include", "color", "position", "target", "exclude")) > 100


def test_graded_rewards():
    rng = np.random.default_rng(3)
    values = Counter[bool]()
    for _ in range(6000):
        names = [str(name) for name in rng.choice(CLASS_NAMES, 3, replace=False)]
        detections, record = random_detections(rng, names), random_record(rng, names)
        colour_of = {float(score): str(rng.choice(COLOURS[:3])) for score in detections.scores}
        threshold = 0.9 if record["tag"] == "counting" else 0.3
        found = found_objects(detections, threshold, 16)
        objects = {
            name: [(np.append(detections.boxes[row], detections.scores[row]), None) for row in rows]
            for name, rows in found.items()
        }
        reward = graded_original(lambda image, rows, name, c=colour_of: [c[float(box[4])] for box, _ in rows])
        _, expected, _ = reward(None, objects, record)
        value = our_verdict(detections, record, colour_of).graded
        assert value == pytest.approx(expected, abs=1e-12)
        values[value < 1] += 1
    print(values)  # noqa: T201
    assert min(values.values()) > 50


def test_relative_positions(original):
    rng = np.random.default_rng(1)
    numbers = Counter[int]()
    for _ in range(50_000):
        pair = random_box(rng), random_box(rng)
        ours = relations(*pair, 0.1)
        assert set(ours) == original.relative_position(*((np.append(box, np.float32(0.5)), None) for box in pair))
        numbers[len(ours)] += 1
    assert min(numbers[number] for number in (0, 1, 2)) > 1000, numbers


def test_crops(original, monkeypatch):
    rng = np.random.default_rng(2)
    monkeypatch.setitem(original.__dict__, "transform", np.asarray)
    for _ in range(300):
        height, width = rng.integers(1, 40, 2)
        image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        mask = rng.random((height, width)) < 0.5
        left, right = np.sort(rng.choice(width + 1, 2, replace=False))
        top, bottom = np.sort(rng.choice(height + 1, 2, replace=False))
        box = np.array([left, top, right, bottom], dtype=np.float32)
        crops = original.ImageCrops(Image.fromarray(image), [(tuple(box), mask)])  # newer Pillows take no array
        assert np.array_equal(crops[0][0], crop_object(image, mask, box))


def test_colours_by_clip_benchmark(tmp_path, monkeypatch):
    """The whole of color_classification, with clip_benchmark's own classifier around a small random CLIP."""
    metrics = stand_in("metrics", classification_report=None, balanced_accuracy_score=None)
    folder = packages("clip_benchmark==1.4.0") / "clip_benchmark" / "metrics"
    zsc = run_file(folder / "zeroshot_classification.py", sklearn=stand_in("sklearn"), sklearn__metrics=metrics)
    original = evaluator(zeroshot_classification=zsc)
    ours = load_classifier(make_geneval(tmp_path))
    model = ours.encoder.model
    monkeypatch.setattr(torch.utils.data.DataLoader, "__init__", _in_this_process(torch.utils.data.DataLoader.__init__))
    original.__dict__.update(
        clip_model=stand_in(
            "clip",
            encode_text=lambda tokens: model.get_text_features(input_ids=tokens).pooler_output,
            encode_image=lambda pixels: model.get_image_features(pixel_values=pixels).pooler_output,
        ),
        tokenizer=lambda texts: ours.processor.tokenizer(texts, padding=True, return_tensors="pt")["input_ids"],
        transform=lambda crop: ours.processor.pictures(images=crop, return_tensors="pt")["pixel_values"][0],
    )
    rng = np.random.default_rng(3)
    colours = Counter[str]()
    for name in ("dog", "computer mouse", "fire hydrant"):
        image = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8) // 64 * 64
        masks = [rng.random((48, 64)) < rng.random() for _ in range(40)]
        corners = [np.sort(rng.choice(48, (2, 2), replace=False), axis=0).reshape(-1) for _ in masks]
        boxes = [np.array(corner, dtype=np.float32) for corner in corners]
        objects = [(tuple(box), mask) for box, mask in zip(boxes, masks, strict=True)]
        theirs = original.color_classification(Image.fromarray(image), objects, name)
        crops = [crop_object(image, mask, box) for mask, box in zip(masks, boxes, strict=True)]
        assert ours.classify(crops, [name] * len(crops)) == theirs
        colours.update(theirs)
    assert len(colours) >= 4, colours


def _in_this_process(construct: Any) -> Any:
    return lambda self, *args, **options: construct(self, *args, **options | {"num_workers": 0})


def test_original_evaluator_reads_folders_and_results_are_read_back(tmp_path, monkeypatch):
    """The original's main() on folders that we write, its results read by us, its summary beside ours."""
    library = packages("pandas==2.3.3", "pytz==2025.2", "tzdata==2025.2")
    monkeypatch.syspath_prepend(str(library))
    import pandas  # from the cache folder

    original = evaluator(pandas=pandas)
    rng = np.random.default_rng(4)
    detections: dict[tuple[int, int], Detections] = {}
    records: list[dict[str, Any]] = []
    for number in range(36):
        names = [str(name) for name in rng.choice(CLASS_NAMES, 2, replace=False)]
        records.append(
            random_record(rng, names) | {"tag": TAGS[number % 5 if number < 30 else 5], "prompt": f"no. {number}"}
        )
        samples = [random_detections(rng, names) for _ in range(4)]
        detections |= {(number, sample): found for sample, found in enumerate(samples)}
        pictures = [encode_png(np.zeros((2, 2, 3), dtype=np.uint8)) for _ in samples]
        write_prompt_folder(tmp_path / "images", number, records[-1], pictures)
    colour_of = {float(score): COLOURS[index % 2] for d in detections.values() for index, score in enumerate(d.scores)}

    def detector(_: None, path: str) -> Any:
        return as_mmdet(detections[int(Path(path).parts[-3]), int(Path(path).stem)])

    monkeypatch.setattr(original, "inference_detector", detector)
    monkeypatch.setattr(
        original, "color_classification", lambda image, objects, name: [colour_of[float(box[4])] for box, _ in objects]
    )
    outfile = tmp_path / "results" / "results.jsonl"
    original.args.imagedir, original.args.outfile = str(tmp_path / "images"), str(outfile)
    original.main(original.args)
    results = read_results(outfile)
    assert [(result.prompt_number, result.sample) for result in results] == sorted(detections)
    ours = [
        our_verdict(detections[result.prompt_number, result.sample], records[result.prompt_number], colour_of)
        for result in results
    ]
    assert [verdict.correct for verdict in ours] == [result.correct for result in results]
    for verdict, result in zip(ours, results, strict=True):
        assert result.metadata == records[result.prompt_number]
        lines = "\n".join(in_original_words(reason) for reason in verdict.reasons)
        assert sorted_relations(lines) == sorted_relations(result.reason)
    summary = subprocess.run(
        [sys.executable, str(geneval_source() / "evaluation" / "summary_scores.py"), str(outfile)],
        env={"PYTHONPATH": str(library)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    means = tag_means([result.tag for result in results], np.array([float(verdict.correct) for verdict in ours]))
    assert f"Overall score (avg. over tasks): {overall(means):.5f}" in summary
    for tag, mean in means.items():
        assert f"{tag:<16} = {mean:.2%}" in summary

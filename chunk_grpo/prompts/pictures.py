"""Pictures that prompts say how to edit: found and checked beside their prompt file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from chunk_grpo.config.prompts import PromptChecks
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import check_picture
from chunk_grpo.prompts.findings import Findings, dropped
from chunk_grpo.prompts.image_folders import picture_inside
from chunk_grpo.prompts.rows import CheckedPrompts, PromptRow

RATIO = 0.02
"""Largest difference of two ratios of sides that are taken as equal, as a share."""


def check_pictures(
    checked: CheckedPrompts, folder: Path, shape: tuple[int, int], rules: PromptChecks
) -> CheckedPrompts:
    """Find the pictures of all prompts of a file in `folder` and check them by their headers.

    They will be resized to `shape`, height and width of the images. `rules.records` is for what cannot be read,
    `rules.pictures` for other ratios. The prompts that are kept get the paths of their pictures; DataError if problems
    are refused, or no prompt remains.
    """
    report = checked.report
    findings = Findings(report.sources, report.unit)
    rows = tuple(_found(checked.rows, folder, shape, rules, findings))
    findings.refuse(rules)
    reported = (*report.findings, *findings.reported(rules))
    if not rows:
        raise DataError(
            f"{', '.join(report.sources)}: must hold prompts with pictures, got {len(checked.rows)}, all dropped"
            f"{dropped(reported, report.unit)}\nFix the file, or the setting that is named."
        )
    return CheckedPrompts(rows, replace(report, kept=len(rows), used=len(rows), findings=reported))


def _found(
    rows: Sequence[PromptRow], folder: Path, shape: tuple[int, int], rules: PromptChecks, findings: Findings
) -> Iterator[PromptRow]:
    height, width = shape
    for row in rows:
        name = row.picture or ""
        try:
            path = picture_inside(folder, name)
            wide, high = check_picture(path)
        except (ValueError, DataError) as error:
            findings.add("records", "no picture", row.source, row.line, str(error).rstrip("."))
            continue
        if abs(wide * height / (high * width) - 1) > RATIO:
            text = f"{name} has {wide} x {high} pixels, another ratio than the images' {width} x {height}"
            findings.add("pictures", "pictures of another ratio", row.source, row.line, text)
            if rules.pictures == "drop":
                continue
        yield replace(row, picture=str(path))

"""Rules of the section `prompts` that involve more than one key."""

from collections.abc import Iterator

from chunk_grpo.config.problems import Problem
from chunk_grpo.config.prompts import FilePrompts, PromptFile, PromptsParams

SHAPES_EDITS = "shapes-edits"
"""Source of edits of the toy world."""


def prompt_files_fit_source(prompts: PromptsParams) -> Iterator[Problem]:
    """Prompt files need `source: file` or `geneval` and vice versa; wise_count needs `source: shapes`."""
    reads = prompts.source in ("file", "geneval")
    if reads and prompts.train_file is None:
        yield Problem(("prompts", "train_file"), f"required with source: {prompts.source}, got null")
    for name in ("train_file", "eval_file"):
        file: PromptFile | None = getattr(prompts, name)
        if file is not None and not reads:
            yield Problem(("prompts", name), f"must be null with source: {prompts.source}")
        for key in ("prompt_field", "category_field", "metadata_fields", "picture_field"):
            if file is not None and prompts.source == "geneval" and getattr(file, key) is not None:
                yield Problem(
                    ("prompts", name, key),
                    f"must be null with source: geneval, whose format names the fields, got {getattr(file, key)!r}",
                )
    if prompts.source != "shapes" and prompts.wise_count:
        yield Problem(("prompts", "wise_count"), f"must be 0 with source: {prompts.source}, got {prompts.wise_count}")


def revisions_are_of_the_hub(prompts: PromptsParams) -> Iterator[Problem]:
    """`revision` needs `hub_file`; a local file or URL has no revision."""
    for path, file in prompt_files(prompts):
        if file.hub_file is None and file.revision is not None:
            yield Problem(
                (*path, "revision"),
                f"must be null without hub_file (only a file of a data set on the hub has a revision), got "
                f"{file.revision!r}; name the file by hub_file, or remove the revision",
            )


def benchmark_names_are_free(prompts: PromptsParams) -> Iterator[Problem]:
    """Benchmarks do not have the names of other splits."""
    taken = ("train", "eval", "wise") if prompts.wise_count else ("train", "eval")
    for name in prompts.benchmarks:
        if name in taken:
            yield Problem(
                ("prompts", "benchmarks", name), f"must differ from the names of the other splits: {', '.join(taken)}"
            )


def pictures_are_beside_a_file(prompts: PromptsParams) -> Iterator[Problem]:
    """`picture_field` needs a file on a local disk, of `source: file`."""
    for path, file in prompt_files(prompts):
        if file.picture_field is not None and (file.hub_file is not None or "://" in file.path):
            yield Problem(
                (*path, "picture_field"),
                f"must be null unless the file is on a local disk, with its pictures below its folder, got "
                f"{file.picture_field!r}; copy the file and its pictures to a disk",
            )


def all_prompts_edit_or_none(prompts: PromptsParams) -> Iterator[Problem]:
    """If a prompt file has pictures to edit, or the toy world makes edits, all prompts have."""
    files = prompt_files(prompts)
    edits: list[tuple[str, ...]] = [("prompts", "source")] if prompts.source == SHAPES_EDITS else []
    edits += [path for path, file in files if file.picture_field is not None]
    others = [(*path, "picture_field") for path, file in files if file.picture_field is None]
    others += [
        ("prompts", "benchmarks", name)
        for name, benchmark in prompts.benchmarks.items()
        if not isinstance(benchmark, FilePrompts)
    ]
    for path in others if edits else ():
        yield Problem(
            path, f"must have pictures to edit, as {'.'.join(edits[0])} has; set picture_field, or null for all"
        )


PROMPT_RULES = (
    prompt_files_fit_source,
    revisions_are_of_the_hub,
    benchmark_names_are_free,
    pictures_are_beside_a_file,
    all_prompts_edit_or_none,
)


def edits(prompts: PromptsParams) -> bool:
    """Whether the prompts edit pictures."""
    return prompts.source == SHAPES_EDITS or any(file.picture_field is not None for _, file in prompt_files(prompts))


def prompt_files(prompts: PromptsParams) -> list[tuple[tuple[str, ...], PromptFile]]:
    """Every prompt file that fields are read of, with its path in params.yaml."""
    files: dict[tuple[str, ...], PromptFile | None] = {
        ("prompts", "train_file"): prompts.train_file,
        ("prompts", "eval_file"): prompts.eval_file,
    }
    for name, benchmark in prompts.benchmarks.items():
        if isinstance(benchmark, FilePrompts):
            files["prompts", "benchmarks", name, "file"] = benchmark.file
    return [(path, file) for path, file in files.items() if file is not None]

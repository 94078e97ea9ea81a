"""Paths of a run's artifacts, for all that read them: the one place besides dvc.yaml that spells them.

Stages write and read where the options of dvc.yaml say. What reads a finished or an unfinished run takes
`Layout.below(its folder)`; tests/artifacts/test_layout.py compares both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from chunk_grpo.artifacts.storage import Location, join

PARAMS, ARTIFACTS = "params.yaml", "artifacts"


@dataclass(frozen=True)
class Layout:
    """Paths or URLs of tables and folders, and below the folders of what each policy, seed and scorer has."""

    prompts: str = f"{ARTIFACTS}/prompts/evaluation.parquet"
    """The prompts of the evaluation, schema prompts."""
    pictures: str = f"{ARTIFACTS}/prompts/pictures"
    """Pictures that prompts edit."""
    embeddings: str = f"{ARTIFACTS}/embeddings/evaluation"
    """Their embeddings."""
    profile: str = f"{ARTIFACTS}/profile/l1_profile.parquet"
    """Schema l1_profile."""
    chunks: str = f"{ARTIFACTS}/chunks"
    """Chunk plans."""
    train: str = f"{ARTIFACTS}/train"
    """Trained policies."""
    timings: str = f"{ARTIFACTS}/timings"
    """Times of trainings."""
    images: str = f"{ARTIFACTS}/images"
    """Evaluation images."""
    scores: str = f"{ARTIFACTS}/scores"
    """Their scores."""
    runs: str = f"{ARTIFACTS}/runs"
    """Run manifests."""
    report: str = f"{ARTIFACTS}/report"
    """The report."""
    settings: str = f"{ARTIFACTS}/inputs/params.json"
    """params.yaml, as the stages have read it."""
    model: str = f"{ARTIFACTS}/inputs/model.json"
    """Record of the checkpoint."""
    specs: str = f"{ARTIFACTS}/specs/scorers"
    """Identities of the scorers."""
    logs: str = "logs"
    """Journals and curves of trainings. They are no output of a stage: they grow while it runs."""

    @classmethod
    def below(cls, root: Location) -> Layout:
        """The layout of a checkout or workspace, the folder of params.yaml."""
        return cls(**{field.name: join(root, str(field.default)) for field in fields(cls)})

    def plan(self, name: str) -> str:
        """A chunk plan, schema chunk_plan."""
        return join(self.chunks, f"{name}.parquet")

    def policy(self, variant: str, seed: int) -> str:
        """Folder of a trained policy."""
        return join(self.train, variant, of_seed(seed))

    def transformer(self, variant: str, seed: int) -> str:
        """Weights of a trained policy, in the layout of diffusers."""
        return join(self.policy(variant, seed), "transformer")

    def metrics(self, variant: str, seed: int) -> str:
        """Metrics of a training, schema train_metrics."""
        return join(self.policy(variant, seed), "metrics.parquet")

    def times(self, variant: str, seed: int) -> str:
        """Times of a training, schema train_metrics."""
        return join(self.timings, variant, f"{of_seed(seed)}.parquet")

    def drawn(self, policy: str, seed: int | None = None) -> str:
        """Images of a policy, schema images; `seed` is the training seed, None of a policy not trained here."""
        return join(self.images, policy, *([] if seed is None else [of_seed(seed)]), "images.parquet")

    def scored(self, policy: str, scorer: str) -> str:
        """Scores of a policy by a scorer, schema scores."""
        return join(self.scores, policy, f"{scorer}.parquet")

    def manifest(self, stage: str) -> str:
        """Run manifest of a stage."""
        return join(self.runs, f"{stage}.json")

    def spec(self, scorer: str) -> str:
        """Identity of a scorer."""
        return join(self.specs, f"{scorer}.json")

    @property
    def summary(self) -> str:
        """Numbers of the report."""
        return join(self.report, "summary.json")

    def journal_folder(self, variant: str, seed: int | str) -> str:
        """Folder of a training's journal."""
        return join(self.logs, variant, of_seed(seed))


def of_seed(seed: int | str) -> str:
    """Name of what belongs to a training seed."""
    return f"seed-{seed}"

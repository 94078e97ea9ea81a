import pytest

from chunk_grpo.scorers.configured import SharedModels


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> SharedModels:
    """The process's models for one test: its own, none at its start."""
    own = SharedModels()
    monkeypatch.setattr("chunk_grpo.scorers.configured.MODELS", own)
    return own

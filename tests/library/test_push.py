"""`export --push`, against a recording stand-in of the hub's client."""

from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest

from chunk_grpo.__main__ import call


class Hub:
    """Part of HfApi that is used."""

    calls: list[tuple[str, Any]]
    failure: Exception | None = None

    def create_repo(self, name: str, **options: Any) -> str:
        if self.failure is not None:
            raise self.failure
        self.calls.append((name, options))
        return f"https://hub.example/{name}"

    def upload_folder(self, *, folder_path: Path, **options: Any) -> None:
        self.calls.append((options["repo_id"], sorted(path.name for path in folder_path.iterdir())))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Hub]:
    def written(checkout: Path, variant: str, seed: int, kind: str, out: Path) -> None:
        out.mkdir()
        for name in ("README.md", "weights.safetensors"):
            (out / name).write_text(name)

    monkeypatch.setattr(Hub, "calls", [], raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "a token")
    monkeypatch.setattr("chunk_grpo.library.export.export_run", written)
    return Hub


def pushed(out: Path, repository: str, *more: str) -> int:
    return call("export", ["chunk-ws", "--out", str(out), "--push", repository, *more])


@pytest.mark.parametrize(("more", "is_private"), [((), None), (("--private",), True)])
def test_the_folder_is_uploaded_with_its_card(hub, tmp_path, capsys, more, is_private) -> None:
    assert pushed(tmp_path / "out", "ann/policy", *more) == 0
    assert hub.calls == [
        ("ann/policy", {"private": is_private, "exist_ok": True}),
        ("ann/policy", ["README.md", "weights.safetensors"]),
    ]
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\nhttps://hub.example/ann/policy\n"


def test_without_a_token_nothing_is_written(hub, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert pushed(tmp_path / "out", "ann/policy") == 2
    assert "Run `hf auth login`, or set HF_TOKEN" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_name_of_another_form(hub, tmp_path, capsys) -> None:
    assert pushed(tmp_path / "out", "policy") == 2
    assert "--push: must be OWNER/NAME, got 'policy'" in capsys.readouterr().err


def test_a_namespace_of_others_keeps_the_folder(hub, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(Hub, "failure", httpx.HTTPError("403 Forbidden: no rights to create a model under ann"))
    assert pushed(tmp_path / "out", "ann/policy") == 3
    message = capsys.readouterr().err
    assert "403 Forbidden" in message and "ann must be you or an organisation of yours" in message
    assert f"`hf upload ann/policy {tmp_path / 'out'}` tries again" in message
    assert (tmp_path / "out" / "README.md").exists()

"""The string of the server: who can read it, and to which servers Prefect's clients send it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.served import AUTH, OUR_STRING, PORT, kept_string, setup_environment


def test_password_file_is_created_once_for_owner_only(tmp_path: Path) -> None:
    string, is_new = kept_string(tmp_path)
    assert is_new
    assert len(string) > 30
    assert (tmp_path / AUTH).stat().st_mode & 0o777 == 0o600
    assert kept_string(tmp_path) == (string, False)
    (tmp_path / "other").mkdir()
    assert kept_string(tmp_path / "other")[0] != string


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o601])
def test_rejects_password_file_readable_by_others(tmp_path: Path, mode: int) -> None:
    kept_string(tmp_path)
    (tmp_path / AUTH).chmod(mode)
    with pytest.raises(ConfigError, match=f"with mode 0600, got user .* and mode {mode:04o}: .* remove the file"):
        kept_string(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n", b"password", b"a:b c", b"a:b\nc:d", "a:ü".encode(), b"a:\xff"])
def test_rejects_damaged_password_file(tmp_path: Path, content: bytes) -> None:
    kept_string(tmp_path)
    (tmp_path / AUTH).write_bytes(content)
    with pytest.raises(ConfigError, match="must hold USER:PASSWORD"):
        kept_string(tmp_path)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `make serve` runs, on port 4300."""
    monkeypatch.delenv(OUR_STRING, raising=False)
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    home = tmp_path / ".prefect"
    home.mkdir()
    (home / AUTH).write_text("admin:secret\n")
    (home / PORT).write_text("4300\n")
    return home


def given(url: str | None) -> object:
    found = setup_environment(ctx=SimpleNamespace(api_url=url))
    return found and found.env


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_password_is_sent_to_make_serve_server(served: Path, host: str) -> None:
    assert given(f"http://{host}:4300/api") == {OUR_STRING: "admin:secret"}


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:4200/api",  # perhaps another user's
        "http://127.0.0.1/api",
        "https://api.prefect.cloud/api/accounts/1",
        "http://evil.example:4300/api",
        "http://127.0.0.1:4300@evil.example/api",
        "http://127.0.0.1:99999/api",
        "http://[::1/api",
        "",
        None,
    ],
)
def test_password_is_sent_to_no_other_server(served: Path, url: str | None) -> None:
    assert given(url) is None


def test_user_password_is_kept(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OUR_STRING, "mine:own")
    assert given("http://127.0.0.1:4300/api") is None


def test_no_password_is_sent_without_a_server(served: Path) -> None:
    (served / PORT).write_text("")  # `make serve` has ended
    assert given("http://127.0.0.1:4300/api") is None
    assert given("http://127.0.0.1/api") is None
    (served / PORT).unlink()
    assert given("http://127.0.0.1:4300/api") is None

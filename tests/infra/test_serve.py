"""What `make serve` checks and says before it starts anything."""

import socket
from pathlib import Path
from threading import Thread

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.clones import locked
from chunk_grpo.orchestration.served import AUTH, OUR_STRING, PORT
from infra.local_prefect import SERVER_STRING, LocalPrefect, free_port
from infra.serve import OPEN, _welcome, ask_for_string, from_environment
from infra.setup import SetUpError

from .conftest import answering


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AUTH", "PREFECT_API_URL", SERVER_STRING, OUR_STRING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / ".dvc").mkdir()
    return tmp_path / "home"


def refusal(home: Path, port: int) -> str:
    """Why a server does not start; nothing may have been started or written then."""
    with pytest.raises(SetUpError) as error, LocalPrefect(root=home.parent, home=home, port=port).running():
        pass
    assert not list(home.glob("*.log"))
    return str(error.value)


def test_second_make_serve_in_folder_changes_nothing(home: Path) -> None:
    with locked(home / PORT):
        (home / PORT).write_text("4321\n")
        assert "already runs here, on port 4321" in refusal(home, free_port())
        assert (home / PORT).read_text() == "4321\n"


def test_used_port_error_tells_prefect_from_other_programs(home: Path) -> None:
    with answering(200, b"true") as (port, _):
        assert f"port {port} is in use by a Prefect server, perhaps `make serve` of another" in refusal(home, port)
    with answering(200, b"<html>") as (port, _):
        assert f"port {port} is in use by another program; choose another one" in refusal(home, port)
        assert f"port {port} is in use by another program, and the reports of this server need it" in refusal(
            home, port - 1
        )
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        Thread(target=lambda: [mute.accept()[0].close() for _ in range(2)], daemon=True).start()
        assert f"port {port} is in use by another program" in refusal(home, port)


def test_password_is_generated_in_private_folder(home: Path) -> None:
    prefect = from_environment()
    assert ask_for_string(prefect)
    assert prefect.auth is not None
    assert home.stat().st_mode & 0o777 == 0o700
    assert prefect.auth == (home / AUTH).read_text().strip()
    assert prefect.environment[OUR_STRING] == prefect.auth
    assert prefect.auth not in _welcome(prefect)
    assert f"Password     in {home / AUTH}" in _welcome(prefect)
    assert f"PREFECT_HOME={home} " in _welcome(prefect)  # where commands look for it
    assert prefect.auth not in repr(prefect)


def test_password_can_be_disabled_with_a_warning(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTH", "0")
    prefect = from_environment()
    assert not ask_for_string(prefect)
    assert prefect.auth is None
    assert not (home / AUTH).exists()
    assert OPEN in _welcome(prefect)
    assert "Any user of this machine can start runs" in OPEN
    for wrong in ("no", "-1", "off"):
        monkeypatch.setenv("AUTH", wrong)
        with pytest.raises(ConfigError, match="AUTH: must be"):
            ask_for_string(prefect)


def test_user_password_is_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVER_STRING, "me:mine")
    monkeypatch.setenv(OUR_STRING, "other:server")
    prefect = from_environment()
    assert not ask_for_string(prefect)
    assert prefect.auth == "me:mine"
    assert not (home / AUTH).exists()
    assert prefect.environment[OUR_STRING] == "me:mine"

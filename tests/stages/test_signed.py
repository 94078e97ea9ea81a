"""Several machines take orders from each other alone: signed with their key, and stages of this project only."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]  # not in its __all__

from chunk_grpo.code import COPY, code_digest, copy_code
from chunk_grpo.environment import MACHINES_KEY
from chunk_grpo.errors import ConfigError
from stages import follow, report
from stages._launch.machines import Link, Machines, Outcome, Ticket, _store_here, call, is_stage
from stages._launch.processes import run_processes
from stages._launch.signed import SignedStore, UnsignedError, machines_key
from stages.follow import refusal_of
from tests.conftest import ROOT
from tests.stages.two_machines import Launcher, Pair, a_key, pair

HARMFUL = ["-c", "import os; os.mkdir('harmed')"]
STAGE = ["-m", "stages.report"]


@pytest.fixture
def two(tmp_path: Path) -> Pair:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return pair(tmp_path / "first", tmp_path / "second")


@pytest.fixture
def follower(two: Pair) -> Iterator[Launcher]:
    with two.following() as follower:
        follower.says("waiting for stages")
        yield follower


def ticket(arguments: list[str], folder: Path = ROOT) -> Ticket:
    return Ticket(arguments, str(folder), "", code_digest(), 1, 1, "name")


def machine_0(two: Pair, key: bytes) -> Machines:
    return Machines(2, 0, "127.0.0.1", two.port, key)


def test_port_owner_without_key_cannot_run_commands(two: Pair, follower: Launcher) -> None:
    """Tickets without a signature, with one of another key, and with one that was made for an earlier offer."""
    store = TCPStore("127.0.0.1", two.port, is_master=True, wait_for_workers=False)
    text = json.dumps(asdict(ticket(HARMFUL, two.folders[1])))
    store.set("ticket", text)
    offers = set()
    store.set("call", "")
    while len(offers) < 4:
        if store.check(["ready/1"]):
            offer = store.get("ready/1")[64:].decode()
            offers.add(offer)
            if len(offers) == 1:
                store.set(f"ticket/{offer}", text)
            elif len(offers) == 2:
                SignedStore(store, bytes(64)).set(f"ticket/{offer}", text)
            else:
                SignedStore(store, two.keys[0].read_bytes()).set("ticket/earlier", text)
                store.set(f"ticket/{offer}", store.get("ticket/earlier"))
        time.sleep(0.1)
    follower.says(
        f"refused a ticket of 127.0.0.1:{two.port} that is not signed with the key of {MACHINES_KEY}"
    )
    said = follower.messages.read_text()
    assert "began" not in said and "refused a stage" not in said
    assert not (two.folders[1] / "harmed").exists()


def test_signed_ticket_can_only_run_a_stage(two: Pair, follower: Launcher) -> None:
    """And each stage ends there with the reason, in place of a wait."""
    machines = machine_0(two, two.keys[0].read_bytes())
    with pytest.raises(
        ConfigError, match=r"^machine 1 of 2: it runs `python -m stages.NAME` only, and was asked to run -c"
    ):
        call(machines, ticket(HARMFUL))
    assert not (two.folders[1] / "harmed").exists()


def test_different_keys_are_reported_at_once(two: Pair, follower: Launcher) -> None:
    machines = machine_0(two, a_key(two.folders[0] / "another").read_bytes())
    with pytest.raises(
        ConfigError, match=r"^machine 1 of 2: must have the key of machine 0.*the same file " + MACHINES_KEY
    ):
        call(machines, ticket(STAGE))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (STAGE, True),
        ([*STAGE, "--params", "x"], True),
        (HARMFUL, False),
        ([], False),
        (["-m"], False),
        (["-m", "stages"], False),
        (["-m", "stages._stage"], False),
        (["-m", "stages._launch.group"], False),
        (["-m", "stages.nothing"], False),
        (["-m", "stages.report\n"], False),
        (["-m", "http.server"], False),
        (["-i", *STAGE], False),
        (["stages/report.py"], False),
    ],
)
def test_is_stage_accepts_only_stage_commands(arguments: list[str], answer: bool) -> None:
    assert is_stage(arguments) is answer


def test_a_folder_with_other_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "report.py").write_text("import os; os.mkdir('harmed')")
    refusal = refusal_of(ticket(STAGE, tmp_path), here=False, own=code_digest())
    assert refusal.startswith(f"{tmp_path}: must hold the code with which this machine started")
    assert refusal_of(ticket(STAGE), here=False, own=code_digest()) == ""
    evil = replace(ticket(STAGE, tmp_path), code=code_digest(tmp_path))
    assert refusal_of(evil, here=False, own=code_digest()).startswith(
        "its code differs from that of machine 0"
    )


@pytest.mark.parametrize("edited", [False, True])
def test_the_code_of_a_run_of_dvc_is_its_copy_so_that_edits_do_not_count(
    edited: bool, tmp_path: Path
) -> None:
    own = code_digest()
    copy_code(tmp_path / COPY)
    copy_code(tmp_path)
    if edited:
        (tmp_path / "stages" / "report.py").write_text("# edited")
    assert refusal_of(ticket(STAGE, tmp_path), here=False, own=own) == ""
    (tmp_path / COPY / "stages" / "report.py").unlink()
    assert (refusal_of(ticket(STAGE, tmp_path), here=False, own=own) == "") is not edited


def started_here(two: Pair, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of a stage that this process starts as machine 0."""
    for name, value in two.environment(0).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *arguments])
    return run_processes(report.main, report.Arguments)


def test_machine_0_rejects_command_outside_stages(
    two: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert started_here(two, monkeypatch, "-c", "x") == 2
    assert (
        "error: PET_NNODES: several machines run `python -m stages.NAME`, got -c x" in capsys.readouterr().err
    )


def test_unsigned_orders_and_outcomes_are_ignored() -> None:
    store, key = HashStore(), b"k" * 32
    signed = SignedStore(store, key)
    store.set("name/order", "kill")
    store.set("name/ended/0", json.dumps(asdict(Outcome(0))))
    SignedStore(store, b"x" * 32).set("name/failed/0", json.dumps(asdict(Outcome(1))))
    link = Link(signed, Machines(2, 1, key=key), ticket(STAGE))
    link.close()
    assert (link.order, link.members[0].returncode) == ("", None)
    signed.set("earlier/order", "kill")  # of another stage
    signed.set("name/order", "stop")
    link = Link(signed, Machines(2, 1, key=key), ticket(STAGE))
    link.close()
    assert link.order == "stop"


def test_a_signature_holds_for_its_name_and_text_alone() -> None:
    store = HashStore()
    signed = SignedStore(store, b"k" * 32)
    signed.set("a", "text")
    assert signed.get("a") == "text"
    whole = store.get("a")
    for name, value in [
        ("b", whole),
        ("a", whole[:-1]),
        ("a", b"\0" + whole),
        ("a", b""),
        ("a", b"\xff" * 99),
    ]:
        store.set(name, value)
        with pytest.raises(UnsignedError):
            signed.get(name)


@pytest.mark.parametrize(
    ("mode", "text", "rule"),
    [
        (
            None,
            "",
            "must be the path of a file with the key of several machines, got nothing; make one with `",
        ),
        (0o600, None, "cannot be read (No such file or directory); make one with"),
        (0o640, "k" * 44, "must be closed to other users, got mode 640; chmod 600"),
        (0o604, "k" * 44, "must be closed to other users, got mode 604; chmod 600"),
        (0o600, "k" * 31 + "\n\n", "must have at least 32 bytes, got 31; make one with"),
    ],
)
def test_a_missing_or_open_key_is_refused_with_the_next_step(
    mode: int | None, text: str | None, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    if text is not None and mode is not None:
        path.write_text(text)
        path.chmod(mode)
    monkeypatch.setenv(MACHINES_KEY, "" if mode is None else str(path))
    with pytest.raises(ConfigError, match="^" + MACHINES_KEY + ".*" + re.escape(rule)):
        machines_key()


def test_several_machines_without_a_key_are_refused(
    two: Pair, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none = two.folders[0] / "none"
    without = replace(two, keys=(none, none))
    assert started_here(without, monkeypatch, *STAGE) == 2
    assert f"error: {MACHINES_KEY}: {none}: cannot be read" in capsys.readouterr().err
    assert follow.main([]) == 2
    assert f"error: {MACHINES_KEY}: {none}: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "is_open"),
    [("127.0.0.1", False), ("localhost", True), ("192.0.2.1", True), ("no.host.invalid", True)],
)
def test_the_port_is_open_on_the_address_of_machine_0_alone_where_that_is_its_own(
    address: str, is_open: bool, two: Pair
) -> None:
    store = _store_here(replace(machine_0(two, b"k" * 32), address=address))
    with socket.socket() as probe:
        assert (probe.connect_ex(("127.0.0.2", two.port)) == 0) is is_open
    del store

"""Models and policies by hub id, from a stand-in for the hub, with its client's variables set for whole processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import new_workspace
from tests.families.small_parts import TINY
from tests.hub_server import COMMIT, READER, STRANGER, hub_with
from tests.params_edits import put

WRONG = "hf_revoked"
MODEL = "someone/tiny"
ACCEPT = "Accept the licence on {page} with your account (some owners must then agree), and {give}."
GIVE = "give its token by HF_TOKEN (which comes first) or `hf auth login`"
GATED = f"{MODEL} is behind a licence on the hub, and "
TOKENS = {
    "": f"{GATED}no token was sent. {ACCEPT}",
    STRANGER: f"{GATED}the account of your token has not accepted it. {ACCEPT}",
    WRONG: f"the hub refuses {MODEL} with your token (status 401). Make one that may read on {{hub}}/settings/tokens, "
    "accept the licence on {page}, if there is one, with your account, and {give}.",
}
"""By token: what a user without access to the model reads."""

ASKING = """
import json, sys
from chunk_grpo.errors import DataError
from chunk_grpo.families.weights import hub

said = []
def told(call, *given):
    try:
        said.append(str(call(*given)))
    except DataError as error:
        said.append(str(error))

{calls}
print(json.dumps(said))
"""

LOADING = f"""
from chunk_grpo.config.models import ModelParams
from chunk_grpo.config.policies import PolicyFiles
from chunk_grpo.families.base import LoadOptions
from chunk_grpo.families.registry import family_class
from chunk_grpo.families.tokens import token_limits
from chunk_grpo.families.weights.policy import local_policy

def largest():
    options = LoadOptions({MODEL!r}, {COMMIT!r}, height=32, width=32, max_sequence_length=8)
    return float(max(weight.abs().max() for weight in family_class("flux").load(options).transformer.parameters()))

told(lambda: sorted(token_limits("flux", {MODEL!r}, {COMMIT!r}, 8)))
told(largest)
told(lambda: local_policy(PolicyFiles(path={MODEL!r}, revision={COMMIT!r}), "policies.it").name)
"""


def variables(endpoint: str, home: Path, **more: str) -> dict[str, str]:
    """The environment of a user of this hub; an empty value unsets a variable."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    given = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), **more}
    return own | {name: value for name, value in given.items() if value}


def told(calls: str, environment: dict[str, str]) -> list[str]:
    """What a process says to each call: its value, or the message of its error."""
    command = [sys.executable, "-c", ASKING.format(calls=calls)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    said: list[str] = json.loads(done.stdout)
    return said


def accessed(repository: str) -> str:
    return f"told(hub.require_access, 'model.checkpoint', {repository!r}, {COMMIT!r})\n"


@pytest.mark.parametrize("token", TOKENS)
def test_a_refusal_names_the_repository_and_the_next_step(token: str, tmp_path: Path) -> None:
    call = f"told(hub.downloaded, 'policies.it.path', {MODEL!r}, {COMMIT!r}, ['*.json'])\n"
    with hub_with(MODEL, TINY, gated=True) as hub:
        found = told(
            accessed(MODEL) + call + accessed("someone/else"), variables(hub.endpoint, tmp_path, HF_TOKEN=token)
        )
    expected = TOKENS[token].format(page=f"{hub.endpoint}/{MODEL}", hub=hub.endpoint, give=GIVE)
    assert found[:2] == [f"model.checkpoint: {expected}", f"policies.it.path: {expected}"]
    how = {"": "without your token", STRANGER: "to your token", WRONG: "refuses someone/else with your token"}[token]
    assert "someone/else" in found[2] and how in found[2] and GIVE in found[2]


def test_a_shared_cache_gives_what_it_has_without_a_hub_and_a_token(tmp_path: Path) -> None:
    call = f"told(hub.downloaded, 'model.checkpoint', {MODEL!r}, {COMMIT!r}, ['vae/*'])\n"
    shared = str(tmp_path / "shared")
    with hub_with(MODEL, TINY, gated=True) as hub:
        first = variables(hub.endpoint, tmp_path / "first", HF_TOKEN=READER, HF_HUB_CACHE=shared)
        given = told(accessed(MODEL) + call, first)
    folder = Path(shared, f"models--someone--tiny/snapshots/{COMMIT}")
    assert given == ["None", str(folder)]
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {path.relative_to(TINY).as_posix() for path in (TINY / "vae").iterdir()}
    for offline in ("1", ""):
        second = variables(hub.endpoint, tmp_path / "second", HF_HUB_CACHE=shared, HF_HUB_OFFLINE=offline)
        assert told(accessed(MODEL) + call, second) == given
    nowhere = told(accessed(MODEL) + call, variables(hub.endpoint, tmp_path / "third", HF_HUB_OFFLINE="1"))
    assert nowhere[0] == "None"
    assert nowhere[1].startswith(f"model.checkpoint: {MODEL} is no file or folder here, and cannot be downloaded from")
    assert "HF_HUB_OFFLINE is set, so only what is in its cache is read" in nowhere[1]


def test_a_hub_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert told(accessed(MODEL), variables(endpoint, tmp_path, HF_HUB_ETAG_TIMEOUT="1")) == ["None"]


@pytest.mark.slow
def test_a_download_that_breaks_off_is_no_traceback(tmp_path: Path) -> None:
    """The client tries five times, and then raises an error of its network library, which is no OSError."""
    call = f"told(hub.downloaded, 'policies.it.path', {MODEL!r}, {COMMIT!r}, ['model_index.json'])\n"
    with hub_with(MODEL, TINY, torn=True) as hub:
        (found,) = told(call, variables(hub.endpoint, tmp_path))
    assert found.startswith(
        f"policies.it.path: {MODEL} is no file or folder here, and cannot be downloaded from the hub"
    )
    assert "peer closed connection" in found


@pytest.mark.slow
@pytest.mark.parametrize("by", ["the loaders", "hf download"])
def test_what_is_loaded_from_a_mirror_loads_again_offline(by: str, tmp_path: Path) -> None:
    """HF_ENDPOINT is the mirror; the network is away afterwards."""
    local = LOADING.replace(repr(MODEL), repr(str(TINY))).replace(repr(COMMIT), "None")
    with hub_with(MODEL, TINY, gated=True) as hub:
        environment = variables(hub.endpoint, tmp_path, HF_TOKEN=READER)
        if by == "hf download":
            command = [str(Path(sys.executable).with_name("hf")), "download", MODEL, "--revision", COMMIT]
            subprocess.run(command, env=environment, capture_output=True, check=True)
            expected = told(local, environment)
        else:
            expected = told(LOADING, environment)
    assert expected[0] == "['CLIP', 'T5']" and float(expected[1]) > 0 and expected[2] == "transformer"
    assert told(LOADING, variables(hub.endpoint, tmp_path, HF_HUB_OFFLINE="1")) == expected


@pytest.mark.slow
def test_every_loader_says_that_a_licence_is_not_accepted(tmp_path: Path) -> None:
    reaching = f"""
from infra.accept_steps import reach_model
from types import SimpleNamespace
told(reach_model, SimpleNamespace(checkpoint={MODEL!r}, revision={COMMIT!r}))
"""
    with hub_with(MODEL, TINY, gated=True) as hub:
        found = told(LOADING + reaching, variables(hub.endpoint, tmp_path))
    expected = TOKENS[""].format(page=f"{hub.endpoint}/{MODEL}", give=GIVE)
    keys = ("model.checkpoint", "model.checkpoint", "policies.it.path", "model.checkpoint")
    assert found == [f"{key}: {expected}" for key in keys]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["model.checkpoint", "policies.it.path"])
def test_the_first_stage_refuses_what_the_hub_will_not_give(key: str, tmp_path: Path) -> None:
    own = new_workspace(tmp_path)
    if key == "model.checkpoint":
        own.edit(put("model.checkpoint", MODEL))
        own.edit(put("model.revision", COMMIT))
    else:
        own.edit(put("policies", {"it": {"kind": "weights", "path": MODEL, "revision": COMMIT}}))
    module, options = own.options("inputs")
    with hub_with(MODEL, TINY, gated=True) as hub:
        done = subprocess.run(
            [sys.executable, "-m", module, *options],
            cwd=own.root, env=variables(hub.endpoint, tmp_path / "home"), capture_output=True, text=True,
        )  # fmt: skip
    expected = TOKENS[""].format(page=f"{hub.endpoint}/{MODEL}", give=GIVE)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
    assert " ".join(done.stderr.split()).endswith(f"{key}: {expected}")

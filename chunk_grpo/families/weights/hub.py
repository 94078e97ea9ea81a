"""The hub's answers to downloads of base models and policies, as errors that say what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants, get_session, hf_raise_for_status, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # loaded on demand, unseen by mypy

from chunk_grpo.errors import DataError, one_line

_OF_THE_HUB = "A hub id needs the network, and often an accepted licence and `hf auth login`."

_OFFLINE = (
    "HF_HUB_OFFLINE is set, so only what is in its cache is read (HF_HUB_CACHE, or hub/ below HF_HOME): fetch it there "
    "with `hf download`, or unset the variable."
)

_GIVE_TOKEN = "give its token by HF_TOKEN (which comes first) or `hf auth login`"


def downloaded(
    key: str, repository: str, revision: str | None, patterns: Sequence[str], *, left_out: str | None = None
) -> Path:
    """Folder in the hub's cache with the files of a repository that match `patterns` and not `left_out`.

    Raises:
        DataError: A file is neither there nor given by the hub.
    """
    try:
        return Path(
            snapshot_download(repository, revision=revision, allow_patterns=list(patterns), ignore_patterns=left_out)
        )
    except Exception as error:  # its types depend on the network library of the installed huggingface_hub
        raise not_downloaded(key, repository, revision, error) from error


def not_downloaded(key: str, repository: str, revision: str | None, error: Exception) -> DataError:
    """The error to raise where a download failed.

    Args:
        key: Key of params.yaml that names the repository.
        repository: Hub id of a model.
        revision: Hub commit.
        error: What the hub's client raised, or a library that called it.
    """
    refused = _refusal(key, repository, error)
    return refused or DataError(
        f"{key}: {repository} is no file or folder here, and cannot be downloaded from the hub (revision {revision}): "
        f"{one_line(error) or type(error).__name__}. {_OFFLINE if constants.HF_HUB_OFFLINE else _OF_THE_HUB}"
    )


def require_access(key: str, repository: str, revision: str | None) -> None:
    """Ask the hub whether the account of the token, if any, may read a repository, unless it is in the cache.

    Without an answer nothing is said: another machine may load the model, and loading names what is wrong.

    Raises:
        DataError: The hub refuses the repository or the token.
    """
    folder = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "snapshots")
    if constants.HF_HUB_OFFLINE or (revision is not None and (folder / revision).is_dir()):
        return
    # As huggingface_hub.auth_check asks, which waits for ever where a network drops what is sent.
    question = f"{constants.ENDPOINT}/api/models/{repository}/auth-check"
    try:
        answer = get_session().get(question, headers=build_hf_headers(), timeout=constants.HF_HUB_ETAG_TIMEOUT)
        hf_raise_for_status(answer)
    except Exception as error:  # its types depend on the network library of the installed huggingface_hub
        if refused := _refusal(key, repository, error):
            raise refused from error


def _refusal(key: str, repository: str, error: BaseException) -> DataError | None:
    """What the hub refused; None: something else is wrong."""
    answer = _answer(error)
    if answer is None:
        return None
    page, has_token = f"{constants.ENDPOINT}/{repository}", "authorization" in answer.response.request.headers
    status = answer.response.status_code
    if isinstance(answer, GatedRepoError):
        why = "the account of your token has not accepted it" if has_token else "no token was sent"
        return DataError(
            f"{key}: {repository} is behind a licence on the hub, and {why}. Accept the licence on {page} with your "
            f"account (some owners must then agree), and {_GIVE_TOKEN}."
        )
    if isinstance(answer, RepositoryNotFoundError) and not (status == 401 and has_token):
        return DataError(
            f"{key}: the hub has no model {repository}, or does not show it {'to' if has_token else 'without'} your "
            f"token. Compare the name with {page}; with an account that may see it there, {_GIVE_TOKEN}."
        )
    if status in (401, 403):
        return DataError(
            f"{key}: the hub refuses {repository} {'with your' if has_token else 'without a'} token (status {status}). "
            f"Make one that may read on {constants.ENDPOINT}/settings/tokens, accept the licence on {page}, if "
            f"there is one, with your account, and {_GIVE_TOKEN}."
        )
    return None


def _answer(error: BaseException | None) -> HfHubHTTPError | None:
    """The hub's answer among an error and its causes; libraries wrap it."""
    while error is not None and not isinstance(error, HfHubHTTPError):
        error = error.__cause__ or error.__context__
    return error

"""Upload of an exported folder to the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from chunk_grpo.errors import ConfigError, DataError, install_command, one_line

_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def check_login(repository: str) -> None:
    """Check what can be checked without the hub: the repository's form, and that a token is there.

    Args:
        repository: OWNER/NAME.

    Raises:
        ConfigError: The name has another form, huggingface_hub is not installed, or there is no token.
    """
    if not _NAME.fullmatch(repository):
        raise ConfigError(f"--push: must be OWNER/NAME, got {repository!r}")
    try:
        from huggingface_hub import get_token
    except ImportError as error:
        raise ConfigError(f"--push: needs huggingface_hub: {install_command('training')}") from error
    if get_token() is None:
        raise ConfigError(
            "--push: there is no token of the hub. Run `hf auth login`, or set HF_TOKEN to a token that may write."
        )


def push(folder: Path, repository: str, *, is_private: bool) -> str:
    """Upload a folder, with its model card, in one commit.

    Args:
        folder: Folder that `export` wrote.
        repository: OWNER/NAME; made if it does not exist.
        is_private: Whether a new repository is private; an existing one stays as it is.

    Returns:
        Address of the repository.

    Raises:
        DataError: The hub refused it, or could not be reached; the folder stays.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(repository, private=is_private or None, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Add a policy of chunk-grpo")
    except (HTTPError, OSError, ValueError) as error:
        owner = repository.split("/")[0]
        raise DataError(
            f"--push {repository}: the hub took no upload ({type(error).__name__}: {one_line(error)}). {owner} must be "
            f"you or an organisation of yours, and the token must be allowed to write. {folder} is kept: "
            f"`hf upload {repository} {folder}` tries again."
        ) from error
    return str(address)

"""File of a data set on the Hugging Face hub: cached or downloaded."""

from __future__ import annotations

from pathlib import Path

from chunk_grpo.errors import ConfigError, DataError, install_command


def hub_file(repository: str, file: str, revision: str | None) -> Path:
    """Path in the hub's cache of a file, such as test.json, of a data set, such as ymhao/HPDv2, downloaded if needed.

    `revision` is a commit, branch or tag; None: main. ConfigError: huggingface_hub is not installed.
    """
    try:
        from httpx import HTTPError
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ConfigError(
            f"{repository}: reading from the hub needs huggingface_hub: {install_command('training')}, or give "
            "the path of a local copy."
        ) from error
    try:
        return Path(hf_hub_download(repository, file, repo_type="dataset", revision=revision))
    except (HTTPError, OSError, ValueError) as error:
        chosen = f" --revision {revision}" if revision else ""
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{repository}: the file {file} (revision {revision or 'main'}) is not in the hub's cache and could not be "
            f"downloaded ({type(error).__name__}: {detail}). Where there is a network: `hf download {repository} "
            f"{file} --repo-type dataset{chosen} --local-dir FOLDER`; then give FOLDER/{file} as the path, without a "
            "revision."
        ) from error

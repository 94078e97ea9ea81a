"""File of a data set on the Hugging Face hub: cached or downloaded."""

from __future__ import annotations

from pathlib import Path

from chunk_grpo.artifacts import Location
from chunk_grpo.config.prompts import PromptFile
from chunk_grpo.errors import ConfigError, DataError, install_command


def local_file(file: PromptFile) -> Location:
    """Path or URL of a file of prompts; of one on the hub its path in the hub's cache, downloaded if needed.

    ConfigError: huggingface_hub is not installed.
    """
    if file.hub_file is None:
        return file.path
    try:
        from httpx import HTTPError
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ConfigError(
            f"{file.path}: reading from the hub needs huggingface_hub: {install_command('training')}, or give "
            "the path of a local copy."
        ) from error
    try:
        return Path(hf_hub_download(file.path, file.hub_file, repo_type="dataset", revision=file.revision))
    except (HTTPError, OSError, ValueError) as error:
        chosen = f" --revision {file.revision}" if file.revision else ""
        detail = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{file.path}: the file {file.hub_file} (revision {file.revision or 'main'}) is not in the hub's cache and "
            f"could not be downloaded ({type(error).__name__}: {detail}). Where there is a network: `hf download "
            f"{file.path} {file.hub_file} --repo-type dataset{chosen} --local-dir FOLDER`; then give "
            f"FOLDER/{file.hub_file} as the path, without a revision."
        ) from error

"""The folder in which DVC keeps its state: hashes of files, links, indexes (`core.site_cache_dir`).

DVC's default, /var/tmp/dvc, belongs to everybody. Its databases hold pickles, so whoever writes there runs code as the
user of the next `dvc checkout`. DVC makes missing folders writable for all, therefore this one is made first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from chunk_grpo.environment import own_cache
from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.dvc_internals import Config, DvcException

VARIABLE = "DVC_SITE_CACHE_DIR"
"""DVC's own environment variable for the folder."""


def keep_own_state(repository: Path) -> None:
    """Let every DVC in a checkout, a user's too, use a folder of this user; keeps a setting that is there.

    The setting is in .dvc/config.local, which git ignores, and which goes into the clones of flow runs and of
    `dvc exp run --temp`. A folder that belongs to somebody else is refused.
    """
    own = own_cache("dvc")
    try:
        config = Config(str(repository / ".dvc"))
        chosen = os.environ.get(VARIABLE) or config["core"].get("site_cache_dir")
        if chosen not in (None, str(own)):
            return
        own.mkdir(parents=True, exist_ok=True)
        own.chmod(0o700)
        own.parent.chmod(0o700)  # a group that may write in it could put another folder there
        if chosen is None:
            with config.edit("local") as local:
                local["core"]["site_cache_dir"] = str(own)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"{own}: must be a folder of yours for DVC's state, named in .dvc/config.local ({error}); or set "
            f"{VARIABLE} to another one that only you can enter"
        ) from error
    except DvcException as error:
        raise ConfigError(f"{repository / '.dvc'}: must have settings that DVC can read: {error}") from error


if __name__ == "__main__":
    try:
        keep_own_state(Path.cwd())
    except ConfigError as error:
        sys.exit(f"error: {error}")

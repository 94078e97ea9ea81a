"""DVC stages, one per module; `python -m stages.NAME` runs one.

Under DVC a stage runs the copy of the code that the stage `inputs` made at the start of the run (`_code`), so that
edits during the run count from the next one.
"""

import os
import sys
from pathlib import Path

if sys.argv[0] == "-m":  # `python -m` imports this package first, before anything else of this project
    _copy, _stage = Path(".code").resolve(), os.environ.get("DVC_STAGE", "").rpartition(":")[2]
    if _stage not in ("", "inputs") and _copy.joinpath("stages").is_dir():
        sys.path.insert(0, str(_copy))
        __path__ = [str(_copy / "stages")]

    from chunk_grpo.stopping import begin

    begin()  # install the stop handlers before slow imports

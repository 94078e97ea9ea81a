"""DVC stages, one per module; `python -m stages.NAME` runs one.

Under DVC a stage runs the copy of the code that the stage `inputs` made at the start of the run (`_code`), so that
edits during the run count from the next one.
"""

import os
import sys
from pathlib import Path

_COPY = Path(".code").resolve()
_STAGE = os.environ.get("DVC_STAGE", "").rpartition(":")[2]

# "-m": Python looks for the stage's module, and has imported none of this project yet.
if _STAGE not in ("", "inputs") and sys.argv[0] == "-m" and _COPY.joinpath("stages").is_dir():
    sys.path.insert(0, str(_COPY))
    __path__ = [str(_COPY / "stages")]

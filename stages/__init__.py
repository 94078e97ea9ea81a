"""DVC stages, one per module; `python -m stages.NAME` runs one."""

import sys

from chunk_grpo.stopping import begin

if (
    sys.argv[0] == "-m"
):  # `python -m` imports this package first: install the stop handlers before slow imports
    begin()

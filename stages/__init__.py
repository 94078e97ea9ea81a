"""One module is one DVC stage; `python -m stages.NAME` runs it."""

import sys

from chunk_grpo.stopping import begin

if sys.argv[0] == "-m":  # Python looks for the stage's module, and has imported nothing else
    begin()

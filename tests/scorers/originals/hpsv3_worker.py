"""hpsv3_package.py as a worker script, beside a torch without CUDA (with_torchvision.py)."""

import runpy
import sys
from pathlib import Path

import worker_protocol

SCRIPT = Path(worker_protocol.__file__).parents[1] / "hpsv3_package.py"

sys.argv = [str(Path(__file__).with_name("with_torchvision.py")), str(SCRIPT)]
runpy.run_path(sys.argv[0], run_name="__main__")

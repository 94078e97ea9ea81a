"""hpsv3_original.py as a worker script, beside a torch without CUDA (with_torchvision.py)."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

sys.argv = [str(HERE / "with_torchvision.py"), str(HERE / "hpsv3_original.py")]
runpy.run_path(sys.argv[0], run_name="__main__")

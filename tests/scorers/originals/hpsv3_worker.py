"""The worker of the package hpsv3, beside a torch without CUDA (with_torchvision.py)."""

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKERS = HERE.parents[2] / "chunk_grpo" / "scorers" / "workers"

sys.path.insert(0, str(WORKERS))  # for its `import lines`, as when it runs by itself
sys.argv = [str(HERE / "with_torchvision.py"), str(WORKERS / "hpsv3_original.py")]
runpy.run_path(sys.argv[0], run_name="__main__")

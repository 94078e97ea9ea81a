"""Runs a script beside a torch without CUDA: python with_torchvision.py SCRIPT ARGUMENTS...

PyPI has no torchvision for such a torch. The one that it has finds no compiled operators and fails while it registers
two of them, which the packages under test never call. Here they are declared first.
"""

import runpy
import sys

import torch

try:
    import torchvision
except RuntimeError as error:
    if "torchvision::nms" not in str(error):
        raise
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")

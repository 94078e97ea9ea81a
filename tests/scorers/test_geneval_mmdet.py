"""Our post-processing beside mmdet's own, on the same logits."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from chunk_grpo.scorers.geneval.detector import postprocess
from tests.scorers.originals.geneval import packages, run_file, stand_in

pytestmark = pytest.mark.slow


class FusionHead(nn.Module):
    """Attributes of the base class of mmdet's head."""

    def __init__(self, things: int, stuff: int, test_cfg: dict[str, Any], *_: Any) -> None:
        super().__init__()
        self.num_things_classes, self.num_classes, self.test_cfg = things, things + stuff, test_cfg


def load_head() -> Any:
    """mmdet 2.28.2's MaskFormerFusionHead for 80 things; mmcv, which must be compiled, is not used by it."""
    folder = packages("mmdet==2.28.2") / "mmdet"
    anything = {name: stand_in(name) for name in ("mmcv", "pycocotools", "pycocotools__mask")}
    masks = run_file(folder / "core" / "mask" / "utils.py", **anything)
    register = stand_in("heads", register_module=lambda: lambda cls: cls)
    source = folder / "models" / "seg_heads" / "panoptic_fusion_heads" / "maskformer_fusion_head.py"
    text = source.read_text().replace("from .base_panoptic_fusion_head", "from base_panoptic_fusion_head")
    head = run_file(
        source,
        text=text,
        mmdet=stand_in("mmdet"),
        mmdet__core=stand_in("core"),
        mmdet__core__evaluation=stand_in("evaluation"),
        mmdet__core__evaluation__panoptic_utils=stand_in("panoptic_utils", INSTANCE_OFFSET=1000),
        mmdet__core__mask=stand_in("mask", mask2bbox=masks.mask2bbox),
        mmdet__models=stand_in("models"),
        mmdet__models__builder=stand_in("builder", HEADS=register),
        base_panoptic_fusion_head=stand_in("base", BasePanopticFusionHead=FusionHead),
    )
    return head.MaskFormerFusionHead(80, 0, {"panoptic_on": False, "instance_on": True, "max_per_image": 100})


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("input_size", "image_size"), [((64, 64), (64, 64)), ((64, 96), (40, 60)), ((96, 64), (301, 199))]
)
def test_detections_equal_mmdets(input_size, image_size):
    head = load_head()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        classes = torch.randn(50, 81, generator=generator) * 3
        masks = torch.randn(50, input_size[0] // 4, input_size[1] // 4, generator=generator) * 4
        masks[::7] = -masks[::7].abs()  # empty ones
        # What its mask head does before: logits to the size of the (padded) input.
        enlarged = nn.functional.interpolate(masks[None], size=input_size, mode="bilinear", align_corners=False)
        meta = {"img_shape": (*input_size, 3), "ori_shape": (*image_size, 3)}
        labels, boxes, inside = head.simple_test(classes[None], enlarged, [meta], rescale=True)[0]["ins_results"]
        ours = postprocess(classes, masks, input_size, image_size, min_score=0.3)
        # Its detections come in any order: sorted by score, as the evaluator does.
        theirs = boxes[:, 4].argsort(descending=True)
        theirs = theirs[boxes[theirs, 4] > 0.3]
        order = np.argsort(-ours.scores)
        assert len(order) >= 3
        assert np.array_equal(ours.labels[order], labels[theirs].numpy())
        assert np.array_equal(ours.boxes[order], boxes[theirs, :4].numpy())
        assert np.array_equal(ours.masks[order], inside[theirs].numpy())
        np.testing.assert_allclose(ours.scores[order], boxes[theirs, 4].numpy(), rtol=3e-7)

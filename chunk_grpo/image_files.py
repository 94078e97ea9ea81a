"""Pictures to PNG and back, the one reader of picture files, and image grids."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from chunk_grpo.errors import DataError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
"""Formats that are read, by Pillow's names. Others are not tried: for EPS, Pillow would start Ghostscript."""

MAX_PIXELS = 64_000_000
"""Most pixels of a picture; 192 MB as RGB."""

SOURCE = "source"
"""Beginning of the names of tensors that stand for a picture to edit: guidance has them in both of its passes."""

AWAY = "away."
"""Beginning of the names of a row's own tensors of the negative prompt, before the names of its prompt's."""

_PLAIN = ("RGB", "L", "1", "P", "CMYK", "YCbCr")
_TRANSPARENT = ("RGBA", "LA", "PA")
_ORIENTATION = 0x0112  # tag of EXIF
_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF
_SAVE = "save it as 8-bit RGB"
_TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By orientation: what makes the picture upright (as ImageOps.exif_transpose, which asks a PNG for its last chunk)."""


def encode_png(picture: NDArray[np.uint8]) -> bytes:
    """Encode a picture [H, W, 3] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return buffer.getvalue()


def decode_image(content: bytes, name: str) -> NDArray[np.uint8]:
    """Decode an image file to RGB [H, W, 3], upright as its EXIF orientation says, 16 bits scaled to 8.

    DataError with the `name` of the image if it is not one complete, opaque picture of a known format and mode, or has
    too many pixels.
    """
    with _opened(io.BytesIO(content), name, "Replace it; `dvc repro` generates images of the pipeline again.") as image:
        return _pixels(image)


def read_picture(path: Path) -> NDArray[np.uint8]:
    """As `decode_image`, for a file."""
    with _opened(path, str(path)) as image:
        return _pixels(image)


def check_picture(path: Path) -> tuple[int, int]:
    """Upright width and height of a picture file, checked by its header; decoded only if it could be transparent.

    DataError as `decode_image`, but that a damaged body is not noticed.
    """
    with _opened(path, str(path)) as image:
        if _has_transparency(image):
            _require_opaque(image)
        width, height = image.size
        return (height, width) if _orientation(image) >= 5 else (width, height)


@contextmanager
def _opened(source: Path | IO[bytes], name: str, advice: str = "Replace it.") -> Iterator[Image.Image]:
    """Open a picture whose header is right. Every error inside the block becomes a DataError with name and advice."""
    try:
        with Image.open(source, formats=FORMATS) as image:
            _check_header(image)
            yield image
    except UnidentifiedImageError as error:  # its own text has an address of memory
        raise DataError(f"image {name}: must be a {', '.join(FORMATS)} file. Convert or replace it.") from error
    except Exception as error:  # Pillow's decoders raise many kinds for damaged files
        raise DataError(f"image {name}: not a readable picture ({error}). {advice}") from error


def _check_header(image: Any) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ValueError(f"must have at most {MAX_PIXELS:,} pixels, got {width} x {height}")
    frames = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)  # of an MPO the first one is the picture
    if frames > 1:
        raise ValueError(f"must be one picture, got {frames} frames or pages")
    if image.mode not in (*_PLAIN, *_TRANSPARENT) and not _has_16_bits(image):
        raise ValueError(f"must have 8 or 16 bits a channel, got Pillow's mode {image.mode}; {_SAVE}")
    if image.format == "TIFF":
        _check_tags(image)
    # A tile's last entry is Pillow's name of the samples, such as RGB;16B.
    if image.format == "PNG" and "transparency" in image.info and image.tile and "16" in str(image.tile[0][3]):
        raise ValueError("must be opaque, got 16 bits a channel with a transparent colour; put it on a background")


def _check_tags(image: Any) -> None:
    """Refuse samples of a TIFF that Pillow reads as others: signed ones, 12 bits, 16-bit grey in which 0 is white."""
    bits, kinds = image.tag_v2.get(_BITS, (1,)), image.tag_v2.get(_SAMPLE_FORMAT, (1,))
    if any(each not in (1, 2, 4, 8, 16) for each in bits) or any(each != 1 for each in kinds):
        raise ValueError(f"must have unsigned samples of at most 16 bits, got {bits} of format {kinds}; {_SAVE}")
    if _has_16_bits(image) and image.tag_v2.get(_PHOTOMETRIC) != 1:
        raise ValueError(f"must have 65535 as white, got 0 as white; {_SAVE}")


def _has_16_bits(image: Image.Image) -> bool:
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


def _has_transparency(image: Image.Image) -> bool:
    return image.mode in _TRANSPARENT or "transparency" in image.info


def _require_opaque(image: Image.Image) -> None:
    least = image.convert("RGBA").getchannel("A").getextrema()[0]
    if least != 255:
        raise ValueError("must be opaque, got transparent pixels, whose colours nobody sees; put it on a background")


def _orientation(image: Image.Image) -> int:
    """EXIF orientation of the pixels, 1 to 8.

    Pillow turns a TIFF itself. A PNG has one only if it stands before the pixels, as Pillow writes it.
    """
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return 1
    return int(image.getexif().get(_ORIENTATION, 1))


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    orientation = _orientation(image)
    image.load()
    if image.format == "PNG" and _orientation(image) != orientation:
        raise ValueError(f"has its EXIF orientation behind the pixels, where it is seen too late; {_SAVE}")
    if _has_16_bits(image):
        grey = np.asarray(image).astype(np.float64) / 257  # 65535 is white
        image = Image.fromarray(grey.round().astype(np.uint8))
    elif _has_transparency(image):
        _require_opaque(image)
        image = image.convert("RGBA")
    if orientation in _TURNED:
        image = image.transpose(_TURNED[orientation])
    return np.array(image.convert("RGB"))


def fitted(picture: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize a picture [H, W, 3] as diffusers' VaeImageProcessor does; of another ratio, both ends are cut first."""
    image = Image.fromarray(picture)
    wide, high = (min(image.width, image.height * width / height), min(image.height, image.width * height / width))
    left, top = (image.width - wide) / 2, (image.height - high) / 2
    box = (left, top, left + wide, top + high)
    return np.asarray(image.resize((width, height), Image.Resampling.LANCZOS, box))


def all_fitted(pictures: Sequence[Callable[[], NDArray[np.uint8]]], height: int, width: int) -> NDArray[np.uint8]:
    """Read and fit pictures, [B, H, W, 3]; each function is called once, however often it is among them."""
    read = {picture: fitted(picture(), height, width) for picture in dict.fromkeys(pictures)}
    return np.stack([read[picture] for picture in pictures])


def as_pictures(images: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Convert images [B, 3, H, W] in [0, 1] to 8-bit pictures [B, H, W, 3]."""
    pictures: NDArray[np.uint8] = (images.transpose(0, 2, 3, 1) * 255).round().astype(np.uint8)
    return pictures


def image_grid(pictures: Sequence[NDArray[np.uint8]], columns: int, gap: int = 2) -> NDArray[np.uint8]:
    """Arrange pictures [H, W, 3] of one size, at least 1, in a grid on white, with borders and gaps of `gap` pixels."""
    height, width = pictures[0].shape[:2]
    rows = -(-len(pictures) // columns)
    grid = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), 255, dtype=np.uint8)
    for index, picture in enumerate(pictures):
        top, left = (gap + (size + gap) * at for size, at in zip((height, width), divmod(index, columns), strict=True))
        grid[top : top + height, left : left + width] = picture
    return grid

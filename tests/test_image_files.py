"""The reader of picture files: pixels of each kind by hand or by Pillow, and a sentence for all else."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from chunk_grpo import image_files
from chunk_grpo.errors import DataError
from chunk_grpo.image_files import check_picture, decode_image, read_picture

RAMP = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(bits: int, colour: int, row: bytes, before: bytes = b"", behind: bytes = b"") -> bytes:
    """A PNG of 2 x 1 pixels, with chunks before and behind them."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, bits, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0" + row))
    return b"\x89PNG\r\n\x1a\n" + header + before + pixels + behind + chunk(b"IEND", b"")


def header_of_png(width: int, height: int) -> bytes:
    """A PNG of a size, without pixels."""
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IEND", b"")


def tiff(bits: int, data: bytes, white: int = 65535, kind: int = 1) -> bytes:
    """A grey TIFF of 2 x 1 pixels; `kind` is its SampleFormat."""
    tags = [(256, 2), (257, 1), (258, bits), (259, 1), (262, int(white > 0)), (273, 134), (277, 1), (278, 1)]
    tags += [(279, len(data)), (339, kind)]
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + data


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return chunk(b"eXIf", exif.tobytes()[6:])


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_rgb_is_read_as_it_is(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    assert (decode_image(saved(Image.fromarray(RAMP), kind, **options), "it") == RAMP).all()


def test_sixteen_bits_of_grey_are_scaled() -> None:
    """20000 of 65535 is 77.8 of 255."""
    grey = np.array([[0, 20000, 65535]], dtype=np.uint16)
    for kind in ("PNG", "TIFF"):
        found = decode_image(saved(Image.fromarray(grey), kind), "it")
        assert found[0].tolist() == [[0] * 3, [78] * 3, [255] * 3]


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK"])
def test_other_opaque_modes_are_read_as_pillow_converts_them(mode: str) -> None:
    image = Image.fromarray(RAMP).convert(mode)
    kind = "TIFF" if mode == "CMYK" else "PNG"
    expected = np.array(image.convert("RGB"))
    assert (decode_image(saved(image, kind), "it") == expected).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_an_opaque_alpha_channel_changes_nothing(mode: str) -> None:
    image = Image.fromarray(RAMP).convert(mode)
    assert (decode_image(saved(image), "it") == np.array(image.convert("RGB"))).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_picture_is_turned_upright(kind: str, orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    content = saved(Image.fromarray(RAMP), kind, exif=exif, **options)
    expected = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
    assert (decode_image(content, "it") == expected).all()
    (tmp_path / "it").write_bytes(content)
    assert check_picture(tmp_path / "it") == expected.shape[1::-1]


def clear(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    image.putpixel((0, 0), (255, 0, 0, 0))
    return image


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "transparent": (lambda: saved(clear(Image.fromarray(RAMP))), "must be opaque"),
    "transparent palette": (lambda: saved(Image.fromarray(RAMP).convert("P"), transparency=0), "must be opaque"),
    "transparent colour": (lambda: saved(Image.fromarray(RAMP), transparency=(0, 10, 20)), "must be opaque"),
    "float": (lambda: saved(Image.fromarray(np.full((2, 2), 0.5, np.float32)), "TIFF"), "mode F"),
    "32 bits": (lambda: saved(Image.fromarray(np.full((2, 2), 70000, np.int32)), "TIFF"), "mode I"),
    "transparent 16-bit colour": (
        lambda: png(16, 2, struct.pack(">6H", *[20000] * 6), chunk(b"tRNS", struct.pack(">3H", *[20000] * 3))),
        "must be opaque",
    ),
    "transparent 16-bit grey": (
        lambda: png(16, 0, struct.pack(">2H", 20000, 0), chunk(b"tRNS", struct.pack(">H", 20000))),
        "must be opaque",
    ),
    "signed": (lambda: tiff(8, b"\xff\x05", kind=2), "unsigned samples"),
    "12 bits": (lambda: tiff(12, b"\xff" * 3), "unsigned samples of at most 16 bits, got (12,)"),
    "black is white": (lambda: tiff(16, bytes(4), white=0), "must have 65535 as white"),
    "CIE Lab": (lambda: saved(Image.fromarray(RAMP).convert("LAB"), "TIFF"), "mode LAB"),
    "animation": (
        lambda: saved(Image.fromarray(RAMP), save_all=True, append_images=[Image.fromarray(RAMP[::-1])]),
        "got 2 frames or pages",
    ),
    "pages": (
        lambda: saved(Image.fromarray(RAMP), "TIFF", save_all=True, append_images=[Image.fromarray(RAMP)]),
        "got 2 frames or pages",
    ),
    "GIF": (lambda: saved(Image.fromarray(RAMP), "GIF"), "must be a PNG, JPEG"),
    "bomb": (lambda: header_of_png(100_000, 100_000), "exceeds limit"),
    "large": (lambda: header_of_png(9_000, 8_000), "at most 64,000,000 pixels, got 9000 x 8000"),
    "no pixels": (lambda: header_of_png(8, 8), "not a readable picture"),
    "truncated": (lambda: saved(Image.fromarray(RAMP))[:-30], "not a readable picture"),
    "empty": (lambda: b"", "must be a PNG, JPEG"),
    "postscript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "must be a PNG, JPEG"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejects_picture_with_ambiguous_pixels(name: str, tmp_path: Path) -> None:
    content, said = REFUSED[name][0](), REFUSED[name][1]
    with pytest.raises(DataError, match=r"^image it: ") as caught:
        decode_image(content, "it")
    assert said in str(caught.value)
    (tmp_path / "it.png").write_bytes(content)
    with pytest.raises(DataError, match=r"it\.png"):
        read_picture(tmp_path / "it.png")


def test_an_orientation_behind_the_pixels_is_refused() -> None:
    assert decode_image(png(8, 2, bytes(6), before=turned()), "it").shape == (2, 1, 3)
    with pytest.raises(DataError, match="EXIF orientation behind the pixels"):
        decode_image(png(8, 2, bytes(6), behind=turned()), "it")


def test_postscript_file_runs_no_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would start `gs` of the PATH."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    eps = saved(Image.fromarray(RAMP), "EPS")
    with pytest.raises(DataError):
        decode_image(eps, "it")
    assert not (tmp_path / "started").exists()


def test_a_header_is_enough_for_an_opaque_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it.png").write_bytes(saved(Image.fromarray(RAMP)))
    monkeypatch.setattr(Image.Image, "convert", None)
    monkeypatch.setattr(image_files, "_pixels", None)
    assert check_picture(tmp_path / "it.png") == (4, 2)

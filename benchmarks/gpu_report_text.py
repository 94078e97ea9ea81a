"""The Markdown table of `benchmarks.gpu_report`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.flux_gpu import FORWARD, Cell


def markdown(found: Mapping[str, Any]) -> str:
    """One table: piece, what was measured, value. Shares are of the measured rate of a matrix product."""
    pieces, about = found["pieces"], found["machine"]
    kind = "small networks" if about["small"] else "FLUX.1-dev's size"
    title = f"{about['device']}, {kind}, random weights, bfloat16, commit {about['commit']}, torch {about['torch']}"
    rate = pieces.get("rate", {}).get("tflops")
    lines = [title, "", "| piece | measured | value |", "| --- | --- | ---: |"]
    for name, result in pieces.items():
        lines += [f"| {name} | {what} | {value} |" for what, value in _rows(name, result, rate)]
    return "\n".join(lines) + "\n"


def _rows(name: str, result: Mapping[str, Any], rate: float | None) -> Iterator[tuple[str, str]]:
    kind = name.partition("/")[0]
    if "error" in result:
        yield "not measured", str(result["error"])
    elif kind == "rate":
        yield "matrix product, TFLOP/s", f"{result['tflops']:.4g}"
    elif kind == "passes":
        for cell in (Cell(**each) for each in result["cells"]):
            if cell.seconds is None or cell.tflop is None:
                yield f"{cell.batch_size} images", "out of memory"
                continue
            peak = "" if cell.peak_bytes is None else f", {cell.peak_bytes / 2**30:.1f} GiB"
            speed = cell.tflop / cell.seconds
            share = f" ({speed / rate:.0%})" if rate else ""
            yield f"{cell.batch_size} images", f"{speed:.4g} TFLOP/s{share}, {cell.seconds:.4g} s{peak}"
    elif kind == "ways":
        for work, one in result.items():
            if isinstance(one, Mapping):
                text = one["error"].replace("|", "/") if "error" in one else f"{one['seconds']:.4g} s"
                if work == FORWARD and "seconds" in one:
                    text += f", {result['forward_tflop'] / one['seconds']:.4g} TFLOP/s"
                if "first_seconds" in one:
                    text += f", first call {one['first_seconds']:.3g} s"
                yield f"{work}, {result['batch_size']} images", text
    else:
        yield f"images a second, {result['batch_size']} at a time", f"{result['images_per_second']:.4g}"

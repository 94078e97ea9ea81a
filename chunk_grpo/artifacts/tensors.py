"""Read and write tensors: one safetensors file, with an index table of its rows beside it.

Separate from io.py because importing torch takes seconds and most stages need no tensors.
"""

from collections.abc import Iterable, Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from chunk_grpo.artifacts.io import REWRITE_IT
from chunk_grpo.artifacts.storage import Location, input_file, output_file
from chunk_grpo.errors import DataError


def write_tensors(tensors: Mapping[str, torch.Tensor], location: Location) -> None:
    """Write tensors as one safetensors file.

    Raises:
        DataError: `location` cannot be written.
        TransientError: the object store does not answer.
    """
    with output_file(location) as draft:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, draft)


def read_tensors(location: Location, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Read the named tensors of a safetensors file, on the CPU.

    Raises:
        DataError: the file is missing, corrupt or cut off, or a tensor is not in it.
        TransientError: the object store does not answer.
    """
    with input_file(location) as path:
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise DataError(
                f"{location}: corrupt, cut off, or no safetensors file ({error}). {REWRITE_IT}"
            ) from error
    missing = [name for name in names if name not in tensors]
    if missing:
        raise DataError(
            f"{location}: must hold the tensor {missing[0]!r}, got {', '.join(sorted(tensors))}. {REWRITE_IT}"
        )
    return {name: tensors[name] for name in names}

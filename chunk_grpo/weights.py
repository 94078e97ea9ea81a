"""Loads sets of weights: files and network must agree exactly, and every value must be finite."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from chunk_grpo.errors import DataError
from chunk_grpo.git import FETCH_LFS, LFS_POINTER

Shape = Sequence[int]

_SHOWN = 3
"""Maximum number of weights of a kind that a message names."""

_STEMS = ("model", "diffusion_pytorch_model")
"""Names of the files that transformers and diffusers read, without their ends."""

OTHER_FILES = "config.json beside them belongs to another model, or files are from two revisions: fetch them again."

_UNQUANTISED = "give the checkpoint as it was before, in bfloat16 for example"

_KINDS = (
    (
        r"(^|\.)(scale_weight|scale_input|scaled_fp8|input_scale|weight_scale(_inv|_2)?)$",
        f"The file holds float8 weights with scales: {_UNQUANTISED}.",
    ),
    (
        r"\.(absmax|quant_map|nested_absmax|SCB|weight_format)$|quant_state",
        f"The file is quantised by bitsandbytes: {_UNQUANTISED}.",
    ),
    (
        r"\.(qweight|qzeros|scales|g_idx|weight_packed|_data|_scale)$|:(qdata|scale)$",
        f"The file is quantised: {_UNQUANTISED}.",
    ),
    (
        r"(^|\.)(base_layer|lora_[AB]|lora_(down|up|embedding_[AB]|magnitude_vector))(\.|$)",
        "The file holds an adapter beside its layers (peft): merge it (merge_and_unload, or fuse_lora and unload_lora) "
        "and save the network again, or load the plain network here and the adapter as a policy.",
    ),
    (
        r"(^|\.)(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.",
        "The file was saved with a wrapper around the network (module.: DataParallel, _orig_mod.: torch.compile, "
        "_fsdp_wrapped_module.: FSDP): save the network inside the wrapper.",
    ),
    (
        r"^(base_model\.model|model\.diffusion_model|diffusion_model|first_stage_model|cond_stage_model|text_encoders)\."
        r"|^(double_blocks|single_blocks|joint_blocks)\.",
        "The file has names of another layout (of one file for ComfyUI, of the authors, or of peft): write it in "
        "diffusers' layout, by from_single_file and save_pretrained.",
    ),
)
"""Patterns of names in a file, and what such a file is."""


@dataclass(frozen=True)
class KnownDifferences:
    """Harmless differences between files and a network."""

    may_lack: str | None = None
    """Pattern of weights that the model does not use; None: a file must have all weights."""
    may_have: str | None = None
    """Pattern of surplus weights, which the model computes itself; None: a file may have no surplus weights."""


NO_DIFFERENCES = KnownDifferences()


def load_weights(
    where: str,
    model_class: Any,
    folder: Path,
    dtype: torch.dtype,
    rule: str = OTHER_FILES,
    *,
    device: torch.device | str = "cpu",
    known: KnownDifferences = NO_DIFFERENCES,
    files: Mapping[str, Path] | None = None,
) -> Any:
    """Load a frozen network with exactly the weights of its files, which are read once.

    transformers alone draws missing weights at random, diffusers leaves them empty, and both pass over surplus ones.
    What a class itself declares as surplus is accepted: parts of a larger network, such as T5's decoder, and tables
    that it computes.

    Args:
        where: Key of params.yaml and folder, for messages.
        model_class: Class of transformers or diffusers.
        folder: Folder with config.json and the weights.
        dtype: Floating-point type of the weights in memory.
        rule: Sentence about the required files, for messages.
        device: Device of the network, to which each weight is sent by itself. On "meta", names and shapes are compared
            and no values are read.
        known: Harmless differences to accept.
        files: Result of `stored_weights`; no others are read. None: the weights need not be in safetensors files.

    Raises:
        DataError: A weight is missing, surplus, of another shape or not finite, or a file cannot be read.
    """
    # With its number: the libraries load in threads, whose current GPU is the first one.
    device = torch.empty(0, device=device).device
    try:
        with quiet():
            network, report = model_class.from_pretrained(
                dtype=dtype,
                local_files_only=True,
                use_safetensors=None if files is None else True,
                ignore_mismatched_sizes=True,  # so that the report names them
                output_loading_info=True,
                **_source(model_class, str(folder), (files or {}) if device.type == "meta" else None),
                # Tensor by tensor: cast on the CPU, the whole network would take host memory in each process.
                **({} if device.type == "cpu" else {"device_map": {"": device}}),
            )
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise  # of the device, not of the files
    except Exception as error:  # each class has checks of its own, and unpickling raises anything
        if device.type not in ("cpu", "meta"):
            # diffusers cannot move weights that the files lack, and does not say which.
            load_weights(where, model_class, folder, dtype, rule, device="meta", known=known, files=files)
        raise DataError(
            f"{where} cannot be read as a {model_class.__name__} ({type(error).__name__}: {error}). {rule}"
        ) from error
    _refuse(
        where,
        _without(known.may_lack, report["missing_keys"]),
        _twice(network, files or {}).union(_without(known.may_have, report["unexpected_keys"])),
        report["mismatched_keys"],
        rule,
        files or {},
    )
    network.eval().requires_grad_(False)
    if device.type != "meta":
        require_finite(where, network.state_dict(), rule)
    return network


def check_shapes(
    where: str, wanted: Mapping[str, Shape], found: Mapping[str, Shape], may_have: Iterable[str], rule: str
) -> None:
    """Check by name and shape that a file has a network's weights, and of others only those that it may have.

    `where` (key of params.yaml and file) and `rule` (sentence about the required files) are for the message of the
    DataError, which names what differs.
    """
    both = sorted(wanted.keys() & found.keys())
    _refuse(
        where,
        wanted.keys() - found.keys(),
        found.keys() - wanted.keys() - set(may_have),
        [(name, found[name], wanted[name]) for name in both if tuple(found[name]) != tuple(wanted[name])],
        rule,
        {},
    )


def require_finite(where: str, weights: Mapping[str, Tensor], rule: str) -> None:
    """Require that no weight is NaN or infinite; else DataError, with `where` and `rule` as in `check_shapes`.

    Reads each value once, where it is, and waits once for the device.
    """
    # Tied weights are one tensor with two names. Unlike isfinite, aminmax makes no tensor of the same size.
    once = {
        tensor.data_ptr(): name for name, tensor in weights.items() if tensor.is_floating_point() and tensor.numel()
    }
    if not once:
        return
    names = list(once.values())
    ends = torch.stack([torch.stack(torch.aminmax(weights[name].detach())).float() for name in names])
    wrong = [name for name, ok in zip(names, ends.isfinite().all(1).tolist(), strict=True) if not ok]
    if wrong:
        raise DataError(f"{where} must be finite, got NaN or infinity in {_listed(wrong)}. {rule}")


def stored_weights(folder: Path, again: str) -> dict[str, Path]:
    """File of each weight of a folder, from the headers of one safetensors file, or of several with an index.

    DataError if there are no such files, or one is missing, cut off, damaged, quantised, or not as its index says;
    `again` is what to do about damaged ones.
    """
    found: dict[str, Path] = {}
    for stem in _STEMS:
        index, single = folder / f"{stem}.safetensors.index.json", folder / f"{stem}.safetensors"
        if index.exists() and single.exists():
            raise DataError(f"{folder}: must hold one set of weights, got {single.name} and {index.name}; delete one")
        if index.exists():
            named = _index(index, again)
            for path in sorted(set(named.values())):
                if not path.exists():
                    raise DataError(f"{path}: named in {index.name} but missing; {again}")
            held = {name: path for path in sorted(set(named.values())) for name in _header(path, again)}
            if wrong := sorted(name for name in named.keys() | held.keys() if named.get(name) != held.get(name)):
                raise DataError(
                    f"{index}: must name the file of each weight, and does not for {_listed(wrong)}; {again}"
                )
            found |= held
        elif single.exists():
            found |= dict.fromkeys(_header(single, again), single)
    if not found:
        raise DataError(f"{folder}: {_no_weights(folder, again)}")
    return found


def _index(path: Path, again: str) -> dict[str, Path]:
    try:
        named = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        files = {str(name): path.parent / file for name, file in named.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: weight_map must name the file of each weight ({error!r}); {again}") from error
    for file in files.values():
        if file.parent != path.parent or file.suffix != ".safetensors":
            raise DataError(f"{path}: must name safetensors files beside it, got {file}; {again}")
    return files


def _header(path: Path, again: str) -> list[str]:
    """Names of a file's weights."""
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            kinds = {name: str(file.get_slice(name).get_dtype()) for name in names}
    except (SafetensorError, OSError) as error:
        with suppress(OSError), path.open("rb") as stream:
            if stream.read(len(LFS_POINTER)) == LFS_POINTER.encode():
                raise DataError(f"{path}: {FETCH_LFS}.") from error
        raise DataError(f"{path}: cut off or damaged ({error}); {again}") from error
    packed = sorted(name for name, kind in kinds.items() if kind.startswith(("F8", "F4", "F6", "I8", "U8")))
    if packed:
        raise DataError(
            f"{path}: weights must not be quantised, got {kinds[packed[0]]} in {_listed(packed)}. "
            f"{_meaning(names) or f'The file is quantised: {_UNQUANTISED}.'}"
        )
    return names


def _no_weights(folder: Path, again: str) -> str:
    wanted = " or ".join(f"{stem}.safetensors" for stem in _STEMS)
    pickles = [path.name for end in ("bin", "pt", "pth", "ckpt") for path in sorted(folder.glob(f"*.{end}"))]
    if pickles:
        return (
            f"must hold {wanted}, got {pickles[0]}. A pickle can run code and is not read: take the safetensors file "
            "of the same checkpoint, or load it where you trust it and save it again with save_pretrained"
        )
    found = sorted(path.name for path in folder.glob("*.safetensors")) or ["no such file"]
    return f"must hold weights in {wanted} or in files with its index, got {', '.join(found[:_SHOWN])}; {again}"


def _refuse(
    where: str,
    missing: Iterable[str],
    surplus: Iterable[str],
    misshapen: Iterable[tuple[str, Shape, Shape]],
    rule: str,
    files: Mapping[str, Path],
) -> None:
    surplus = sorted(surplus)
    wrong = [
        [f"{name} is missing" for name in sorted(missing)],
        [f"{name} is unknown to the model{_in(name, files)}" for name in surplus],
        [f"{name} is {list(found)} in place of {list(wanted)}" for name, found, wanted in sorted(misshapen)],
    ]
    shown = [sentence for kind in wrong for sentence in kind[:_SHOWN]]
    if shown:
        more = sum(len(kind) for kind in wrong) - len(shown)
        raise DataError(
            f"{where} do not fit the model: {'; '.join(shown)}{f'; and {more} more' if more else ''}. "
            f"{_meaning(surplus) or rule}"
        )


def _meaning(names: Iterable[str]) -> str | None:
    """What a file with these surplus names is, if it is known."""
    for pattern, meaning in _KINDS:
        if any(re.search(pattern, name) for name in names):
            return meaning
    return None


def _in(name: str, files: Mapping[str, Path]) -> str:
    """Where a weight is, if there are several files."""
    return f" (in {files[name].name})" if name in files and len(set(files.values())) > 1 else ""


def _twice(network: Any, names: Iterable[str]) -> set[str]:
    """Names in a file that transformers takes for others in it, by adding or removing the first parts."""
    known = network.state_dict().keys()
    right = {name for name in names if name in known}
    return {
        name
        for name in names
        if name not in known and any(name.endswith(f".{other}") or other.endswith(f".{name}") for other in right)
    }


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _without(pattern: str | None, names: Iterable[str]) -> list[str]:
    return [name for name in names if pattern is None or not re.search(pattern, name)]


def _source(model_class: Any, folder: str, unread: Mapping[str, Path] | None) -> dict[str, Any]:
    """Keywords of `from_pretrained` that say where the weights are; they are not read from the files `unread`."""
    if unread is None:
        return {"pretrained_model_name_or_path": folder}
    if not hasattr(model_class, "config_class"):  # diffusers, which maps files into memory
        return {"pretrained_model_name_or_path": folder}
    state: dict[str, Tensor] = {}
    for path in sorted(set(unread.values())):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                state[name] = torch.empty(file.get_slice(name).get_shape(), dtype=torch.float32, device="meta")
    config = model_class.config_class.from_pretrained(folder, local_files_only=True)
    return {"pretrained_model_name_or_path": None, "config": config, "state_dict": state}


@contextmanager
def quiet() -> Iterator[None]:
    """Context in which transformers and diffusers log no warnings and draw no bars.

    Differences of weights may be harmless, and they print every prompt that a text encoder cuts off.
    """
    libraries = ("transformers", "diffusers")
    loggers = [logging.getLogger(name) for name in libraries]
    levels = [logger.level for logger in loggers]
    # One of them may not be installed, and what loads is imported.
    imported = [sys.modules[f"{name}.utils.logging"] for name in libraries if name in sys.modules]
    barred = [each for each in imported if each.is_progress_bar_enabled()]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    for each in barred:
        each.disable_progress_bar()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for each in barred:
            each.enable_progress_bar()

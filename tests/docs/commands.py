"""The words of a command line: whether what they name exists. Nothing is run, but make with `--dry-run`."""

import importlib
import importlib.util
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from dvc.cli import DvcParserError
from dvc.cli.parser import get_main_parser
from prefect.exceptions import ParameterTypeError, SignatureMismatchError

from chunk_grpo.__main__ import COMMANDS, module_of
from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.presets import combinations, composed, overridden
from tests.architecture.test_docs import ROOT
from tests.test_presets import PRESETS

STARTED = frozenset({"cd", "chunk-grpo", "dvc", "find", "python", "sha256sum", "sort", "xargs"})
"""Programs that a test may start: they stay in the folder where the test runs them, and end."""

KNOWN = STARTED | {
    *(
        ".",
        "accelerate",
        "awk",
        "apt-get",
        "chmod",
        "cp",
        "createdb",
        "createuser",
        "docker",
        "export",
        "git",
        "helm",
        "hf",
    ),
    *("kubectl", "make", "pip", "pre-commit", "prefect", "python3.11", "rm", "sbatch", "sky", "ssh", "sudo"),
}
SETTING = re.compile(r"([A-Z][A-Z_]*)=(.*)", re.S)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a shell's text, without the variables that are set for it."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("&|;"):
                if words:
                    yield words
                words = []
            elif words or not SETTING.fullmatch(word):
                words.append(word)


def problems(text: str) -> list[str]:
    """Missing files that a shell text names."""
    found = []
    for words in commands(text):
        program = Path(words[0]).name or words[0]
        if program not in KNOWN:
            found.append(f"{words[0]}: no program that these tests know (KNOWN in tests/docs/commands.py)")
        check = CHECKS.get(program)
        found += [f"{shlex.join(words)}: {p}" for p in (check(words) if check else ()) if p]
        found += [f"{word}: no such file in the repository" for word in words[1:] if _is_missing(word)]
    return found


def _is_missing(word: str) -> bool:
    """Whether a path below a folder of the repository is neither in git nor made by a command."""
    first = word.split("/")[0]
    if "/" not in word or first not in _folders() or (ROOT / word).exists():
        return False
    return subprocess.run(["git", "check-ignore", "--quiet", word], cwd=ROOT).returncode != 0


@cache
def _folders() -> frozenset[str]:
    """Folders of the repository, those that the commands make left out."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return frozenset(line.split("/")[0] for line in listed.stdout.splitlines() if "/" in line)


def _make(words: list[str]) -> Iterator[str]:
    dry = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True)
    if dry.returncode:
        yield dry.stderr.strip()
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for variable, value in [found.groups() for word in words if (found := SETTING.fullmatch(word))]:
        if not re.search(rf"\b{variable}\b", makefile):
            yield f"the Makefile has no {variable}"
        stands_for_any = value.isupper()
        if variable == "PRESET" and not stands_for_any and value not in PRESETS:
            yield f"no preset {value}"


def _python(words: list[str]) -> Iterator[str]:
    if words[1] != "-m" or not re.fullmatch(r"[a-z_0-9.]+", module := words[2]):  # NAME stands for several
        return
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if not found:
        yield f"no module {module}"
    elif found.origin and Path(found.origin).is_relative_to(ROOT):
        options = re.findall(r'"(--[^"]+)"', Path(found.origin).read_text("utf-8"))
        pattern = "|".join(re.sub(r"\\{.*?\\}", r"[\\w-]+", re.escape(option)) for option in options)
        for word in words:
            if word.startswith("--") and not re.fullmatch(pattern, word):
                yield f"{module} has no option {word}"


def _chunk_grpo(words: list[str]) -> Iterator[str]:
    if words[1:] in ([], ["--help"]):
        return
    if words[1] not in COMMANDS:
        yield f"chunk-grpo has no {words[1]}"
        return
    try:
        module_of(words[1]).parser().parse_args(["1" if word == "N" else word for word in words[2:]])
    except SystemExit:
        yield "chunk-grpo does not take these words; its message is in the captured output"


def _dvc(words: list[str]) -> Iterator[str]:
    try:
        get_main_parser().parse_args(words[1:])
    except DvcParserError:
        yield "dvc does not take these words; its message is in the captured output"


@cache
def _deployments() -> dict[str, Any]:
    """The flow behind each deployment, by `FLOW/DEPLOYMENT`."""
    flows = {}
    for deployment in yaml.safe_load((ROOT / "prefect.yaml").read_text("utf-8"))["deployments"]:
        file, function = deployment["entrypoint"].split(":")
        flow = getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), function)
        flows[f"{flow.name}/{deployment['name']}"] = flow
    return flows


def _prefect(words: list[str]) -> Iterator[str]:
    for word in words[1:]:
        if re.fullmatch(r"[\w-]+/[\w-]+", word) and word not in _deployments():
            yield f"no deployment {word}"
    if "--params" in words:
        flow = _deployments().get(words[3])
        values = json.loads(words[words.index("--params") + 1])
        try:
            if flow:
                flow.validate_parameters(values)
            given = values.get("overrides", ())
            for setting in combinations(given) if "presets" in values else [given]:
                overridden(composed(ROOT, values.get("preset") or "tiny"), setting, None, "overrides")
        except (ParameterTypeError, SignatureMismatchError, ConfigError) as error:
            yield str(error)


CHECKS: dict[str, Callable[[list[str]], Iterator[str]]] = {
    "chunk-grpo": _chunk_grpo,
    "dvc": _dvc,
    "make": _make,
    "prefect": _prefect,
    "python": _python,
}

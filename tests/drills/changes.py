"""Random single changes of a checkout: a value of params.yaml, the order of its keys, a line of code, a user's file."""

import copy
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from chunk_grpo.config import parse_params
from chunk_grpo.errors import ConfigError

Key: TypeAlias = tuple[str | int, ...]

SCORER = '''\
"""A user's scorer."""

import numpy as np

from own_tables import SCALE


def brightness(images, prompts, metadata, **options):
    """Mean of the pixels."""
    power = 2.0 if options["squared"] is True else float(options["power"])
    return (np.asarray(images, dtype=np.float64).mean(axis=(1, 2, 3)) / SCALE) ** power
'''
USER_FILES = {
    "own_rewards.py": SCORER,
    "own_tables.py": "SCALE = 255.0\n",
    "own_weights.txt": "1\n",
    "prompts.txt": "".join(f"a red circle and {number} blue squares\n" for number in range(40)),
    "more.txt": "a green cross\na yellow triangle\n",
}
"""Files of the user, referred to by the parameters of `small`."""


@dataclass
class State:
    """Parameters of a checkout, and its files that differ from the commit."""

    params: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)

    def written(self) -> tuple[str, dict[str, bytes]]:
        """Comparable content of the files; distinguishes 1, 1.0 and true, and orders of keys."""
        return repr(self.params), self.files


def small(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a preset, changed to the user's files and the cheapest valid settings."""
    result = copy.deepcopy(dict(params))
    file = dict.fromkeys(("hub_file", "revision", "prompt_field", "category_field", "limit"))
    result["model"]["checkpoint"] = "model"
    result["prompts"] |= {"source": "file", "train_file": file | {"path": "prompts.txt"}, "eval_file": None}
    result["prompts"] |= {"train_count": 6, "eval_count": 2, "wise_count": 0}
    result["prompts"]["benchmarks"] = {
        "things": {"kind": "coco", "count": 2, "seed": 0},
        "more": {"kind": "file", "file": file | {"path": "more.txt"}, "count": None},
    }
    splits = {"splits": ["eval", "more"], "batch_size": 8}
    options = {"power": 1, "squared": 0}
    own = {"kind": "external", "source": "own_rewards:brightness", "version": 1, "options": options}
    result["scorers"] = {
        "vivid": splits | {"kind": "shapes-vivid"},
        "own": splits | own | {"files": ["own_weights.txt"]},
    }
    result["rewards"] = {"vivid": 1.0, "own": 0.5}
    result["profile"] |= {"num_prompts": 1, "num_seeds": 1}
    result["sampling"]["num_steps"] = 5
    result["chunks"]["plans"] = {
        "step": {"kind": "step"},
        "listed": {"kind": "listed", "sizes": [1, 3]},
        "equal": {"kind": "equal", "chunk_size": 2},
        "guided": {"kind": "guided", "num_chunks": 2},
    }
    window = {"num_steps": 2, "stride": 1, "every": 1}
    result["variants"] = {
        "chunk": {"objective": "chunk", "plan": "equal"},
        "mix": {"objective": "step", "plan": "step", "window": window, "fraction": 1.0},
    }
    result["train"] |= {"seeds": [0], "iterations": 1, "prompts_per_iteration": 2, "group_size": 2}
    result["train"]["heldout"] |= {"num_prompts": 1, "images_per_prompt": 1, "scorers": []}
    result["generate"] |= {"num_steps": 3, "base_steps": 1, "images_per_prompt": 1}
    result["report"] |= {"grid_prompts": 1}
    result["trackers"] = []
    return result


def leaves(value: Any, path: Key = ()) -> Iterator[Key]:
    """Paths of all leaf values."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from leaves(inner, (*path, number))
    else:
        yield path


def get(value: Any, path: Key) -> Any:
    """The value at a path."""
    for key in path:
        value = value[key]
    return value


def with_value(params: Mapping[str, Any], path: Key, value: Any) -> dict[str, Any]:
    """A copy of the parameters with another value at a path."""
    result = copy.deepcopy(dict(params))
    get(result, path[:-1])[path[-1]] = value
    return result


def is_valid(params: Mapping[str, Any]) -> bool:
    """Whether parameters satisfy all rules of the configuration."""
    try:
        parse_params(params)
    except ConfigError:
        return False
    return True


class Changes:
    """Random changes of a state, of kinds that a user could make."""

    def __init__(self, seed: int, presets: Sequence[Mapping[str, Any]], code: Mapping[str, bytes]) -> None:
        """Seed the random generator."""
        self._random = random.Random(seed)
        self._presets, self._code = presets, code

    def draw(self, state: State, earlier: Sequence[State]) -> tuple[str, State]:
        """Draw a change; return its description and the new state."""
        kinds: list[tuple[int, Callable[[State], tuple[str, State] | None]]] = [
            (9, self._value),
            (2, self._order),
            (4, self._line_of_code),
            (4, self._user_file),
        ]
        while True:
            if len(earlier) > 1 and self._random.random() < 0.15:
                number = self._random.randrange(len(earlier))
                return f"back to state {number}", copy.deepcopy(earlier[number])
            (draw,) = self._random.choices([draw for _, draw in kinds], [weight for weight, _ in kinds])
            found = draw(state)
            if found is not None and found[1].written() != state.written():
                return found

    def _value(self, state: State) -> tuple[str, State] | None:
        path = self._random.choice(list(leaves(state.params)))
        old = get(state.params, path)
        new = self._random.choice([*self._elsewhere(path), *self._near(old)])
        changed = with_value(state.params, path, new)
        if path[0] == "composed_from" or not is_valid(changed):
            return None
        if isinstance(new, int) and isinstance(old, int) and new > 4 * max(old, 4) and "seed" not in str(path):
            return None  # valid, but too expensive
        return f"{'.'.join(map(str, path))}: {old!r} -> {new!r}", State(changed, dict(state.files))

    def _elsewhere(self, path: Key) -> Iterator[Any]:
        for preset in self._presets:
            try:
                yield get(preset, path)
            except (KeyError, IndexError, TypeError):
                continue

    def _near(self, value: Any) -> list[Any]:
        if isinstance(value, bool):
            return [not value, int(value)]
        if isinstance(value, int):
            return [value + 1, value - 1, value * 2, float(value), bool(value)]
        if isinstance(value, float):
            return [value * 1.5, value / 2, value + 0.1]
        if value is None:
            return [1, 0.5, False]
        words = {
            "float32": "bfloat16",
            "flow": "dance",
            "rollout": "training",
            "strip": "keep",
            "refuse": "drop",
        }
        words |= {"equal": "guided", "listed": "equal", "chunk": "step", "eval": "things", "more": "eval"}
        return [words.get(value, f"{value}!")] if isinstance(value, str) else []

    def _order(self, state: State) -> tuple[str, State] | None:
        """Shuffle the keys of one mapping."""
        paths = {path[:depth] for path in leaves(state.params) for depth in range(len(path))}
        mappings = [path for path in sorted(paths, key=str) if isinstance(get(state.params, path), dict)]
        path = self._random.choice([path for path in mappings if len(get(state.params, path)) > 1])
        params = copy.deepcopy(state.params)
        mapping = get(params, path)
        names = self._random.sample(list(mapping), len(mapping))
        values = {name: mapping[name] for name in names}
        mapping.clear()
        mapping.update(values)
        place = ".".join(map(str, path)) or "the top"
        return f"order of keys at {place}: {', '.join(map(str, names))}", State(params, dict(state.files))

    def _line_of_code(self, state: State) -> tuple[str, State] | None:
        """Change a number or add a comment in a code file."""
        name = self._random.choice(list(self._code))
        text = state.files.get(name, self._code[name]).decode()
        if self._random.random() < 0.3:
            return f"{name}: a comment", _edited(state, name, text + f"# {self._random.random()}\n")
        numbers = list(re.finditer(r"(?<![\w.\"'%])(\d+\.\d+|[2-9])(?![\w.\"'%])", text))
        if not numbers:
            return None
        number = self._random.choice(numbers)
        new = f"{float(number[0]) * 1.5:g}" if "." in number[0] else str(int(number[0]) + 1)
        line = text.count("\n", 0, number.start()) + 1
        text = text[: number.start()] + new + text[number.end() :]
        return f"{name}, line {line}: {number[0]} -> {new}", _edited(state, name, text)

    def _user_file(self, state: State) -> tuple[str, State] | None:
        name = self._random.choice([*USER_FILES, "model/scheduler/scheduler_config.json"])
        text = state.files[name].decode()
        if name == "own_weights.txt":
            return f"{name}: more", _edited(state, name, text + "1\n")
        if name == "own_tables.py":
            new = str(self._random.choice((255.0, 100.0, 50.0)))
            return f"{name}: {new}", _edited(state, name, f"SCALE = {new}\n")
        if name.endswith(".txt"):
            lines = text.splitlines(keepends=True)
            number = self._random.randrange(len(lines))
            lines[number] = f"a purple star and {self._random.randrange(1000)} red crosses\n"
            return f"{name}, line {number + 1}", _edited(state, name, "".join(lines))
        return f"{name}: white space", _edited(state, name, text + " " * self._random.randrange(1, 4) + "\n")


def _edited(state: State, name: str, text: str) -> State:
    return State(copy.deepcopy(state.params), state.files | {name: text.encode()})

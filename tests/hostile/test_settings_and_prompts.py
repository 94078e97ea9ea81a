"""Random damage of params.yaml, of overrides and of prompt files: read rightly, or refused with a sentence."""

import copy
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chunk_grpo.config import load_params, parse_params
from chunk_grpo.config.load import parse_yaml
from chunk_grpo.config.prompts import PromptChecks, PromptFile
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.orchestration.presets import combinations, overridden
from chunk_grpo.prompts.checks import MAX_CHARACTERS
from chunk_grpo.prompts.geneval import read_geneval
from chunk_grpo.prompts.read import read_prompt_file
from chunk_grpo.prompts.rows import CheckedPrompts
from tests.params_edits import FUZZ, RAW, ROOT, paths, put

pytestmark = pytest.mark.timeout(60)

SECRET = "hunter2-hunter2"
TEXT = (ROOT / "params.yaml").read_text()
ODD: list[object] = [
    *FUZZ,
    *(float("nan"), float("inf"), -0.0, 2**70, 10**400, b"\xff", {1, 2}, ("a",), "", "\0", "\ud800"),
    *("${oc.env:HF_TOKEN}", "a" * 100_000, ["x"] * 1000, {"size": 1}, {None: 1}),
    *(f"s3://AKIA:{SECRET}@bucket", f"https://{SECRET}@host/a@b"),
]
"""Values that stand where others should."""

SCALARS = [
    *("2001-99-99", "!!int x", '"\\U00110000"', '"\\ud800"', "9" * 4301, "!!bool x", "!!float ''"),
    *("!!binary =", "*a", "&a *a"),
    *("0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59.9999999999Z", "!!set {a: 1}", "!!omap [a: 1]"),
    *("? [a]", "<<: 3"),
    *("!!python/object/apply:os.system [id]", "1e999", ".nan", "0o9", "0b2", "---", "...", "%TAG", "\t", "\0"),
    *("{", "]", "|", ">", "'"),
    *(f"https://user:{SECRET}@host", "1:60:60", "=", "~", "!", "!!null x", "!!timestamp x"),
    *("2001-01-01 00:00:00 +99:99"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)


def refusal(read: Callable[[], object], kind: type[Exception]) -> str | None:
    """The message, which is no wall of text and holds no secret; None if it was read."""
    try:
        read()
    except kind as error:
        message = str(error)
        assert len(message) < 300_000
        assert max(map(len, message.split("\n"))) < 2100
        assert SECRET not in message
        return message
    return None


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Content with one to three random edits."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        first = draw.randrange(len(made) + 1)
        last = min(len(made), first + draw.choice([0, 1, 1, 10, 200]))
        copied, one = bytes(made[last : last + 60]), bytes([draw.randrange(256)])
        made[first:last] = draw.choice([b"", one, draw.randbytes(8), copied, b"\n", b'"', b"\0"])
    return bytes(made)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_params_yaml(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(damaged(random.Random(seed), TEXT.encode()))
    refusal(lambda: load_params(path), ConfigError)


@pytest.mark.parametrize("seed", range(4))
def test_odd_texts_in_yaml(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(100):
        lines = [f"{draw.choice('abc')}: {draw.choice(SCALARS)}" for _ in range(draw.randint(1, 3))]
        text = draw.choice(["\n", "\n  ", ", "]).join(lines)
        refusal(lambda text=text: parse_params(parse_yaml(text, "params.yaml")), ConfigError)


@pytest.mark.parametrize("seed", range(4))
def test_odd_values_in_params(seed: int) -> None:
    """What is accepted has no secret, and is the same after it was written as JSON."""
    draw = random.Random(seed)
    for _ in range(60):
        raw = copy.deepcopy(RAW)
        own = {"kind": "external", "source": "a:b", "version": 1, "options": {"a": {"b": [1]}}}
        raw["scorers"]["own"] = own | {"splits": ["eval"], "batch_size": 8}
        for _ in range(draw.randint(1, 2)):
            put(draw.choice(paths(raw)), draw.choice(ODD))(raw)
        if refusal(lambda raw=raw: parse_params(raw), ConfigError) is None:
            params = parse_params(raw)
            written = json.loads(json.dumps(params.model_dump(mode="json"), allow_nan=False))
            assert SECRET not in json.dumps(written)
            assert parse_params(written) == params


WORDS = [
    *("report.title", "train.iterations", "+variants.x", "~variants.dance", "trackers", "model", "++policies"),
    *("generate.seed"),
    *("=", "=", "=", "${", "}", "oc.env:HF_TOKEN", "$\\{oc.env\\:HF_TOKEN\\}", "'${oc.env:HF_TOKEN}'", "\\"),
    *("'", '"', ",", "[", "]"),
    *("{", "}", ":", "1", "a b", "choice(", "range(", ")", "null", "1e999", "\n", "\0", "é", "${now:%Y}"),
    *("${report.title}", "*"),
    *(f"https://user:{SECRET}@host", "glob(*)", "str(", "sort(", "interval(1,2)", "@", "tag(", "shuffle("),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_odd_overrides(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        override = "".join(draw.choice(WORDS[:8] if part == 0 else WORDS) for part in range(draw.randint(1, 6)))
        refusal(lambda override=override: combinations([override]), ConfigError)
        made: list[dict[str, Any]] = []
        refusal(lambda o=override, to=made: to.append(overridden(RAW, [o], None, "p")), ConfigError)
        assert SECRET not in str(made)


TEXTS = ["a red circle", 'a "blue" square, left', "ein Würfel 🎨", "three green crosses"]


def parquet() -> bytes:
    made = io.BytesIO()
    pq.write_table(pa.table({"prompt": TEXTS, "category": ["x", None, "y", "z"], "n": [1, 2, 3, 4]}), made)
    return made.getvalue()


GENEVAL = {"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": "a photo of a bench"}
CONTENTS: dict[str, bytes] = {
    ".txt": "\n".join(TEXTS).encode(),
    ".csv": b"prompt,category\n" + b"".join(b'"%s",x\n' % t.replace('"', '""').encode() for t in TEXTS),
    ".tsv": ("prompt\tcategory\n" + "".join(f"{text}\tx\n" for text in TEXTS)).encode(),
    ".jsonl": "".join(json.dumps({"prompt": text, "n": [1]}) + "\n" for text in TEXTS).encode(),
    ".json": json.dumps([{"prompt": text} for text in TEXTS], ensure_ascii=False).encode(),
    ".parquet": parquet(),
    "geneval.jsonl": (json.dumps(GENEVAL) + "\n").encode() * 2,
}
STRICT = PromptChecks(duplicates="refuse", spaces="refuse")
LENIENT = PromptChecks(records="drop", characters="drop", empty="drop")


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("rules", [STRICT, LENIENT], ids=["strict", "lenient"])
def test_damaged_prompt_files(name: str, rules: PromptChecks, tmp_path: Path) -> None:
    """What is accepted are texts that encoders and tables take, each once, and none is missing without a word."""
    draw = random.Random(name)
    path = tmp_path / f"p{name}"
    for _ in range(60):
        path.write_bytes(damaged(draw, CONTENTS[name]))
        file = PromptFile(path=str(path), prompt_field=draw.choice([None, None, "prompt", "text"]))

        def read(file: PromptFile = file) -> CheckedPrompts:
            return read_geneval(path, rules) if "geneval" in name else read_prompt_file(file, rules)

        if refusal(read, DataError) is None:
            found = read()
            texts = [row.text for row in found.rows]
            assert all(text.strip() == text and 0 < len(text) <= MAX_CHARACTERS for text in texts)
            assert not any(ord(character) < 32 for text in texts for character in text)
            assert len(set(texts)) == len(texts)
            json.dumps([dict(row.metadata) for row in found.rows], allow_nan=False).encode()
            report = found.report
            told = {line for f in report.findings if f.action == "drop" for line in f.lines}
            assert report.read - report.kept == len(told)
            if name == ".txt":
                lines = [line.removesuffix("\r") for line in path.read_bytes().decode().split("\n")]
                assert texts == [lines[row.line - 1].removeprefix("\ufeff").strip() for row in found.rows]

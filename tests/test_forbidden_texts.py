"""Secrets do not reach params.yaml: users and passwords in URLs, and what Hydra takes from the environment."""

from pathlib import Path

import pytest

from chunk_grpo.config import load_params
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.orchestration.presets import combinations, composed_text, overridden
from tests.params_edits import RAW, drop, problems, put

SECRET = "hun-ter2"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"s3://AKIA:{SECRET}@bucket/p.txt", "s3://***@bucket/p.txt"),
        (f"https://user:{SECRET}@host/model", "https://***@host/model"),
        (f"https://{SECRET}@host/model", "https://***@host/model"),
        (f"https://user:p/{SECRET}@host/model", "https://***@host/model"),
        (f"https://user:p@{SECRET}@host", "https://***@host"),
        (f"HTTPS://user:a b{SECRET}@host", "HTTPS://***@host"),
        (f"filecache::s3://AKIA:{SECRET}@bucket", "filecache::s3://***@bucket"),
        (f"see https://a.example, then ftp://u:{SECRET}@b", "see https://a.example, then ftp://***@b"),
        (f"abfs://account:{SECRET}@host/p.txt", "abfs://***@host/p.txt"),
    ],
)
def test_a_user_or_password_of_a_url_is_refused_and_masked(url: str, told: str) -> None:
    """Whatever type the key has, and whichever rule would fail first."""
    keys = ("model.checkpoint", "report.title", "prompts.seed", "prompts.source", "variants.dance.plan")
    message = "\n".join(problems(*(put(key, url) for key in keys)))
    assert SECRET not in message
    for key in keys:
        assert f"{key}: no text may hold the user or password of a URL" in message
    assert message.count(f"got {told!r}") >= len(keys)


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8443/datasets/a@b",
        "http://[::1]:80/a@b",
        "hf://datasets/owner/name@main/p.txt",
        "abfs://container@account.dfs.core.windows.net/p.txt",
        "read http://host:80. Mail me@example.org",
        "a@b",
        "8:30 // me@home",
    ],
)
def test_other_texts_with_an_at_sign_are_allowed(text: str) -> None:
    assert problems(put("report.title", text)) == []
    assert str(DataError(text)) == text


def test_keys_and_lists_are_looked_at_too() -> None:
    url = f"https://user:{SECRET}@host"
    options = {"proxies": [{"all": url}], url: 1}
    own = {"kind": "external", "splits": ["eval"], "batch_size": 8, "version": 1, "source": "a:b"}
    found = problems(put("scorers.own", own | {"options": options}))
    assert [line.partition(": ")[0] for line in found] == [
        "scorers.own.options.proxies[0].all",
        "scorers.own.options.https://***@host",
    ]
    assert SECRET not in "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        f"a: !!int https://u:{SECRET}@host\n",
        f"https://u:{SECRET}@host: 1\nhttps://u:{SECRET}@host: 2\n",
        f"a: *https://u:{SECRET}@host\n",
        f"- https://u:{SECRET}@host\n",
    ],
)
def test_yaml_error_masks_secrets(text: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"\*\*\*@host") as caught:
        load_params(tmp_path / "params.yaml")
    assert SECRET not in str(caught.value)


def test_rejects_hydra_interpolation_in_params() -> None:
    (found,) = problems(put("report.title", "${oc.env:HF_TOKEN}"))
    assert found.startswith("report.title: no text may hold ${, which Hydra would replace")
    raw = RAW | {"report": {"title": "${oc.env:HF_TOKEN}"}}
    with pytest.raises(ConfigError, match=r"got '\$\{oc.env:HF_TOKEN\}'"):
        overridden(raw, ["generate.seed=1"], None, "preset tiny, changed")


CALLS = [
    "'${oc.env:HF_TOKEN}'",
    r"$\{oc.env\:HF_TOKEN\}",
    r"'\${oc.env:HF_TOKEN}'",
    "${ oc.env : HF_TOKEN }",
    "[1, '${oc.env:HF_TOKEN}']",
    "{a: '${oc.env:HF_TOKEN}'}",
    "choice('${oc.env:HF_TOKEN}')",
    "a,'${oc.env:HF_TOKEN}'",
    "str(${oc.env:HF_TOKEN})",
    "${oc.decode:'[1]'}",
    "${now:%Y}",
    "${hydra:runtime.cwd}",
]


@pytest.mark.parametrize("value", CALLS)
def test_an_override_calls_no_resolver(value: str) -> None:
    for apply in (
        lambda override: overridden(RAW, [override], None, "preset tiny, changed"),
        lambda override: combinations([override]),
    ):
        with pytest.raises(ConfigError, match="must not call a resolver") as caught:
            apply(f"report.title={value}")
        assert SECRET not in str(caught.value)


def test_an_override_may_refer_to_another_key() -> None:
    raw = overridden(RAW, ["report.title=${composed_from}"], None, "preset tiny, changed")
    assert raw["report"]["title"] == "tiny"


@pytest.mark.parametrize("value", ["${oc.env:HF_TOKEN}", "${oc.decode:1}", "${now:%Y}", "${oc.env:${a}}"])
def test_a_preset_calls_no_resolver(value: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"a: HF_TOKEN\nb: {{c: ['{value}']}}\nd: ${{a}}\n")
    with pytest.raises(ConfigError, match=r"a preset: b.c\[0\]: .*must not call a resolver") as caught:
        composed_text(tmp_path, "config", {}, "a preset")
    assert SECRET not in str(caught.value)
    (tmp_path / "config.yaml").write_text("a: 1\nd: ${a}\n")
    assert composed_text(tmp_path, "config", {}, "a preset") == "a: 1\nd: 1\n"


def test_scorer_options_must_be_json_values() -> None:
    """Records of other values would equal each other: NaN and null, 1 and "1"."""
    own = {"kind": "external", "splits": ["eval"], "batch_size": 8, "version": 1, "source": "a:b"}
    for value in (float("nan"), float("inf"), {1: 2}, {None: 2}, b"\xff", {1, 2}):
        (found,) = problems(put("scorers.own", own | {"options": {"a": [value]}}))
        assert found.startswith("scorers.own.options: must hold text, finite numbers, true, false, null,")
    assert problems(put("scorers.own", own | {"options": {"a": [1, 1.5, None, True, {"b": "c"}]}})) == []


def test_half_a_character_is_refused() -> None:
    assert problems(put("report.title", "a\ud800")) == [
        "report.title: no text may hold half a character (U+D800 to U+DFFF), got 'a\\ud800'; remove it"
    ]


def test_a_message_has_no_endless_lines_and_not_thousands_of_them() -> None:
    assert len(problems(drop("report"), put("a" * 100_000, 1))[0]) < 2100
    raw = RAW | {f"other-{number}": 1 for number in range(1000)}
    with pytest.raises(ConfigError, match=r"1000 problems\n(.*\n){100}  and 900 more\n") as caught:
        overridden(raw, [], None, "params.yaml")
    assert len(str(caught.value)) < 25_000

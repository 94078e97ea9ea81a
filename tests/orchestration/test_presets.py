"""chunk_grpo/orchestration/presets.py: composing leaves no edit behind without a word."""

from pathlib import Path

import pytest

from chunk_grpo.errors import ConfigError
from chunk_grpo.orchestration.dvc_internals import load_yaml
from chunk_grpo.orchestration.presets import combinations, composed, edits, overridden, preset_names, replace_params
from chunk_grpo.orchestration.workspace import write_params

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository's conf/, and params.yaml of the preset tiny."""
    (tmp_path / "conf").symlink_to(ROOT / "conf", target_is_directory=True)
    replace_params(tmp_path, "tiny", force=False)
    return tmp_path


def edit(root: Path, **changes: object) -> None:
    params = load_yaml(str(root / "params.yaml"))
    params["train"] |= changes
    write_params(root, params)


def test_the_same_values_in_another_form_are_no_edits(root: Path) -> None:
    edit(root)  # written by another program
    replace_params(root, "smoke", force=False)
    assert load_yaml(str(root / "params.yaml"))["composed_from"] == "smoke"


@pytest.mark.parametrize("preset", ["tiny", "smoke"])
def test_edits_are_listed_and_kept(preset: str, root: Path) -> None:
    edit(root, iterations=7, seeds=[3], own=1)
    before = (root / "params.yaml").read_bytes()
    with pytest.raises(ConfigError) as caught:
        replace_params(root, preset, force=False)
    assert str(caught.value).splitlines() == [
        "params.yaml: holds edits, which would be lost:",
        "  train.seeds: [3]; the preset has [0, 1, 2]",
        "  train.iterations: 7; the preset has 16",
        "  train.own: added: 1",
        "params.yaml: holds the edits above, and was left as it is. Copy the file, or move the edits to a new preset "
        "in conf/preset/; `chunk-grpo params compose --force` (make params FORCE=1) overwrites it.",
    ]
    assert (root / "params.yaml").read_bytes() == before
    replace_params(root, preset, force=True)
    assert load_yaml(str(root / "params.yaml")) == composed(root, preset)


@pytest.mark.parametrize("text", ["a: [", "train: {}\n", "composed_from: mine\n"])
def test_params_without_known_preset_are_kept(text: str, root: Path) -> None:
    (root / "params.yaml").write_text(text)
    with pytest.raises(ConfigError, match="its edits cannot be listed"):
        replace_params(root, "tiny", force=False)
    assert (root / "params.yaml").read_text() == text


def test_a_wrong_preset_lists_the_presets_and_changes_nothing(root: Path) -> None:
    before = (root / "params.yaml").read_bytes()
    with pytest.raises(
        ConfigError, match=f"must be one of {', '.join(preset_names(root))} .*got 'tinny'; did you mean 'tiny'\\?"
    ):
        replace_params(root, "tinny", force=True)
    assert (root / "params.yaml").read_bytes() == before


def test_a_value_that_was_taken_away_is_an_edit(root: Path) -> None:
    params = composed(root, "tiny")
    del params["variants"]["chunk-ws"]
    assert [str(edit).partition(";")[0] for edit in edits(root, params)] == ["variants.chunk-ws: removed"]


def test_variants_of_one_preset_run_at_the_size_of_another(root: Path) -> None:
    replace_params(root, "flux-dev", force=False, variants="chunk-settings")
    found, own = load_yaml(str(root / "params.yaml")), composed(root, "flux-dev")
    assert found["variants"] == load_yaml(str(root / "conf" / "variants" / "chunk-settings.yaml"))["variants"]
    assert found["train"] == own["train"]
    with pytest.raises(ConfigError, match=r"variants\.chunk-ws: removed"):
        replace_params(root, "smoke", force=False)  # other variants are edits of the preset


@pytest.mark.parametrize(
    ("preset", "variants", "message"),
    [
        ("flux-dev", "tables", r"variants: must be one of .* \(files of conf/variants/\), got 'tables'"),
        ("tiny-sd3", "draws", r"conf/preset/tiny-sd3.yaml with conf/variants/draws.yaml: .*plan: must be a name in"),
    ],
)  # fmt: skip
def test_variants_that_do_not_fit_change_nothing(preset: str, variants: str, message: str, root: Path) -> None:
    before = (root / "params.yaml").read_bytes()
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        replace_params(root, preset, force=True, variants=variants)
    assert (root / "params.yaml").read_bytes() == before


class TestCombinations:
    @pytest.mark.parametrize(
        ("overrides", "settings"),
        [
            ([], [()]),
            (["train.iterations=2", "~variants.a"], [("train.iterations=2", "~variants.a")]),
            (["train.betas=[1,2]", "report.title='a, b'"], [("train.betas=[1,2]", "report.title='a, b'")]),
            (
                ["train.x=1,2", "~variants.a", "chunks.y=range(3,5)"],
                [(f"train.x={x}", "~variants.a", f"chunks.y={y}") for x in (1, 2) for y in (3, 4)],
            ),
        ],
    )
    def test_each_combination_of_values_is_a_setting(
        self, overrides: list[str], settings: list[tuple[str, ...]]
    ) -> None:
        assert combinations(overrides) == settings

    @pytest.mark.parametrize("override", ["train.x=(1", "train.x=glob(*)"])
    def test_malformed_override_is_named(self, override: str) -> None:
        with pytest.raises(ConfigError, match=r"^overrides: train.x="):
            combinations([override])

    def test_a_single_run_refuses_several_values(self) -> None:
        with pytest.raises(ConfigError, match=r"train.iterations=1,2: has several values.*chunk-grpo/ablations"):
            overridden(composed(ROOT, "smoke"), ["train.iterations=1,2"], None, "preset smoke")

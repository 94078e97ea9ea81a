"""flows/_names.py: names of flow runs."""

import pytest

from chunk_grpo.reporting.markdown import slug
from flows._names import labels, run_name

ID = "01a21419-9d72-7405-adc9-0a5c75356dc0"


@pytest.mark.parametrize(
    ("words", "overrides", "name"),
    [
        (["tiny"], (), "tiny 6dc0"),
        (["tiny"], ("train.learning_rate=3e-4",), "tiny learning_rate=3e-4 6dc0"),
        (
            ["tiny"],
            ("~variants.dance", "+variants.b={plan: step, num: 1234}"),
            "tiny ~dance b={plan:step,num:1234} 6dc0",
        ),
        (["tiny"], ("rewards={hpsv3: 1.0, clip: 0.5}",), "tiny rewards={hpsv3:1.0,cl... 6dc0"),
        (["ablations", "a", "b"], ("x.y=1", "x.z=2", "x.v=3", "x.w=4"), "ablations a b y=1 z=2 +2 6dc0"),
    ],
)
def test_a_name_has_what_differs_from_other_runs(words: list[str], overrides: tuple[str, ...], name: str) -> None:
    assert run_name(words, overrides, ID) == name


@pytest.mark.parametrize(
    ("presets", "settings", "names"),
    [
        (["tiny"], [("train.seed=1",)], ["tiny"]),
        (["tiny", "tiny-paper"], [("train.seed=1",)] * 2, ["tiny", "tiny-paper"]),
        (["tiny"] * 2, [("a.lr=1e-4", "b=2"), ("a.lr=3e-4", "b=2")], ["tiny lr=1e-4", "tiny lr=3e-4"]),
        (["tiny"] * 2, [(f"rewards={{clip: {'0' * 30}{n}}}",) for n in (1, 2)], None),
        (["a"] * 2, [("x.y=1-2",), ("x.y=1.2",)], ["a y=1-2", "a y=1.2 2"]),
    ],
)
def test_workspaces_of_a_run_have_names_that_folders_can_have_apart(
    presets: list[str], settings: list[tuple[str, ...]], names: list[str] | None
) -> None:
    found = labels(presets, settings)
    assert len({slug(name) for name in found}) == len(presets)
    assert names is None or found == names

"""The transfer of chunk plans between families: what is trained, what is compared, what is not repeated."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks import transfer
from benchmarks.transfer import FAMILIES, Found, Outcome, configure, difference, main
from chunk_grpo.config import Params, load_params
from chunk_grpo.reporting.comparisons import Comparison
from chunk_grpo.reporting.evidence import REWARD
from chunk_grpo.reporting.statistics import Interval

ROOT = Path(__file__).resolve().parents[2]
PROFILES = {"flux": (0.8, 0.4, 0.4, 0.4), "sd3": (0.8, 0.8, 0.4, 0.4)}


def test_profiles_compared_by_hand() -> None:
    found = difference([1.0, 2.0, 4.0], [3.0, 6.0, 12.0])
    assert (found.level, found.shape) == (pytest.approx(3.0), pytest.approx(0.0))
    # Ratios 1, 1, 8: the level is 2; the third is 4 times as high, the others half of it.
    found = difference([1.0, 1.0, 1.0], [1.0, 1.0, 8.0])
    assert (found.level, found.shape, found.step) == (pytest.approx(2.0), pytest.approx(3.0), 2)


def configured(folder: Path, family: str, plans: Mapping[str, Sequence[int]], *, small: bool) -> Params:
    root = folder / family
    root.mkdir(exist_ok=True)
    if not (root / "conf").exists():
        (root / "conf").symlink_to(ROOT / "conf")
    arguments = argparse.Namespace(seeds=2, iterations=3, chunks=4, small=small)
    configure(root, arguments, family, plans)
    return load_params(root / "params.yaml")


@pytest.mark.parametrize("small", [True, False])
def test_a_family_trains_alike_but_for_the_boundaries(tmp_path: Path, small: bool) -> None:
    plans = {"own": (2, 3, 4, 7), "other": (3, 3, 3, 7)}
    flux, sd3 = (configured(tmp_path, family, plans, small=small) for family in FAMILIES)
    assert (flux.model.family, sd3.model.family) == ("flux", "sd3")
    assert (flux.sampling.cfg_scale, flux.generate.cfg_scale) == (1, 1)
    assert sd3.sampling.cfg_scale == sd3.generate.cfg_scale
    assert flux.sampling.model_copy(update={"cfg_scale": sd3.sampling.cfg_scale}) == sd3.sampling
    assert flux.train.seeds == (0, 1) and flux.train.iterations == 3
    assert sd3.train.seeds == (0, 1) and sd3.train.iterations == 3
    assert flux.chunks == sd3.chunks and flux.rewards == sd3.rewards
    for params in (flux, sd3):
        own, other = params.variants["own"], params.variants["other"]
        assert own.model_copy(update={"plan": "other"}) == other and set(params.variants) == {"own", "other"}


def test_the_profile_needs_no_plan_of_the_other_family(tmp_path: Path) -> None:
    params = configured(tmp_path, "sd3", {}, small=True)
    assert set(params.chunks.plans) == set(params.variants) == {"guided"}


class Pretended:
    """Clones in which stages take no time. `plans` are what each family measures."""

    def __init__(
        self, patch: pytest.MonkeyPatch, plans: Mapping[str, tuple[int, ...]], fails: str = ""
    ) -> None:
        self.ran: list[tuple[str, tuple[str, ...]]] = []
        self._plans, self._fails = plans, fails
        patch.setattr(transfer, "make_clone", lambda folder: folder)
        patch.setattr(transfer, "repro", self._repro)
        patch.setattr(
            transfer, "read_found", lambda clone: Found(PROFILES[clone.name], self._plans[clone.name])
        )
        patch.setattr(transfer, "read_outcome", lambda clone: outcome())

    def _repro(self, clone: Path, _: object, family: str, plans: Mapping[str, object], *stages: str) -> int:
        assert clone.name == family
        self.ran.append((family, stages or tuple(str(plan) for plan in plans.values())))
        return 7 if family == self._fails else 0


def outcome() -> Outcome:
    def interval(mean: float, low: float, high: float) -> Interval:
        return Interval(mean, low, high, 0.01, 4.0, 2, 8, 8)

    def tuned(name: str, mean: float) -> Comparison:
        rise = interval(mean - 1, mean - 1.02, mean - 0.98)
        return Comparison(name, "tuned", REWARD, mean, rise, (mean - 1, mean - 1))

    return Outcome(
        interval(1.0, 0.9, 1.1), tuned("own", 1.05), tuned("other", 1.04), interval(-0.01, -0.03, 0.01)
    )


def test_equal_plans_are_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretended = Pretended(monkeypatch, {"flux": (2, 2), "sd3": (2, 2)})
    assert main(["--folder", str(tmp_path), "--json", str(tmp_path / "found.json")]) == 0
    assert pretended.ran == [(family, ("chunk_boundaries",)) for family in FAMILIES]
    assert "Each family's plan is the other's too: nothing was trained." in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["plans_are_equal"] is True and set(found["families"]["sd3"]) == {"profile", "plan"}


def test_each_family_trains_both_plans_and_the_table_worked_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretended = Pretended(monkeypatch, {"flux": (1, 3), "sd3": (2, 2)})
    assert main(["--folder", str(tmp_path), "--json", str(tmp_path / "found.json")]) == 0
    assert pretended.ran[2:] == [("flux", ("(1, 3)", "(2, 2)")), ("sd3", ("(2, 2)", "(1, 3)"))]
    printed = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if "|" in line]
    assert ["1", "0.400", "0.800", "2.00"] in rows
    assert "is 1.19 times that of flux; apart from this factor they differ most at step 1, by 68%" in printed
    assert "Guided plan of flux: [1, 3]" in printed and "Guided plan of sd3: [2, 2]" in printed
    space = "\N{NO-BREAK SPACE}"
    rise = f"+0.030{space}to{space}+0.070"
    assert ["sd3", "own", "[2, 2]", "1.050", "+0.050", rise] in rows
    assert ["sd3", "other", "[1, 3]", "1.040", "+0.040", f"+0.020{space}to{space}+0.060"] in rows
    gap = ["other minus own", "", "", "\N{MINUS SIGN}0.010", f"\N{MINUS SIGN}0.030{space}to{space}+0.010"]
    assert ["flux", *gap] in rows
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["families"]["flux"]["other_minus_own"]["mean"] == -0.01
    assert found["families"]["flux"]["own"]["difference"]["high"] == pytest.approx(0.07)


def test_a_failed_stage_ends_the_command_with_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended = Pretended(monkeypatch, {"flux": (1, 3), "sd3": (2, 2)}, fails="sd3")
    assert main(["--folder", str(tmp_path), "--json", str(tmp_path / "found.json")]) == 7
    assert [family for family, _ in pretended.ran] == ["flux", "sd3"]
    assert not (tmp_path / "found.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_small_run_compares_plans_and_second_run_reuses_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # By four chunks the plans are equal here.
    options = ["--small", "--chunks", "6", "--seeds", "2", "--iterations", "2", "--folder", str(tmp_path)]
    options += ["--json", str(tmp_path / "found.json")]
    assert main(options) == 0
    first = json.loads((tmp_path / "found.json").read_text())
    assert first["plans_are_equal"] is False
    for family in FAMILIES:
        found = first["families"][family]
        assert len(found["profile"]) == sum(found["plan"]) == 16
        gap = found["other"]["difference"]["mean"] - found["own"]["difference"]["mean"]
        assert found["other_minus_own"]["mean"] == pytest.approx(gap, abs=1e-12)
    trained = list(tmp_path.glob("*/artifacts/train/*/seed-*/transformer"))
    assert len(trained) == 2 * 2 * 2
    times = {path: path.stat().st_mtime_ns for path in trained}
    assert main(options) == 0
    assert {path: path.stat().st_mtime_ns for path in trained} == times
    second = json.loads((tmp_path / "found.json").read_text())
    assert {**second, "machine": first["machine"]} == first
    assert "other minus own" in capsys.readouterr().out

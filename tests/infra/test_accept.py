"""chunk-grpo accept: its steps on made-up findings, its page, and the whole command on the CPU."""

import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import reference_scores
from chunk_grpo.__main__ import call
from chunk_grpo.config import parse_params, read_raw_params
from chunk_grpo.errors import ConfigError, DataError
from chunk_grpo.git import git
from chunk_grpo.gpus import DriverCard, visible_gpus
from chunk_grpo.orchestration.outcomes import StageFailed
from chunk_grpo.orchestration.pipeline import Pipeline
from chunk_grpo.orchestration.presets import composed, overridden
from chunk_grpo.planning.machines import GPUS
from chunk_grpo.stopping import StopSignal
from infra import accept, accept_steps
from infra.accept_curve import BANDS, Band, compared, curve, whole
from infra.accept_steps import plan_held, processes, ratios
from infra.accept_trial import Found, Trial, kind_of, link_data, machine_of, smaller, visible_cards
from tests.conftest import ROOT
from tests.planning.planned import preset
from tests.real_checkout import make_checkout
from tests.test_presets import PRESETS

UNKNOWN = DriverCard("Toy accelerator", 24.0, "1.0")
H100 = DriverCard("NVIDIA H100 80GB HBM3", 79.6, "580.1")


@pytest.mark.parametrize(
    ("name", "gib", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", 79.6, "H100"),
        ("NVIDIA A100-SXM4-40GB", 39.4, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 79.3, "A100"),
        ("NVIDIA GeForce RTX 4090", 23.6, "RTX4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 95.0, "RTXPRO6000"),
        ("Tesla T4", 15.0, None),
    ],
)
def test_a_card_is_known_by_the_drivers_name(name: str, gib: float, kind: str | None) -> None:
    assert kind_of(DriverCard(name, gib, "580")) == kind


def test_the_driver_lists_the_cards_that_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [DriverCard("NVIDIA H200", 143771 / 1024, "580.159")] * 2
    for module in ("chunk_grpo.gpus", "infra.accept_trial"):
        monkeypatch.setattr(f"{module}.driver_cards", lambda: two)
    for visible, names in (("", []), ("-1", []), ("1", ["1"]), ("2, GPU-5f0c", ["2", "GPU-5f0c"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert (visible_gpus(), len(visible_cards())) == (names, len(names))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    cards = visible_cards()
    assert (visible_gpus(), cards) == (["0", "1"], two)
    planned = machine_of(cards, None, None)
    assert (planned.gpu, planned.gpus) == ("H200", 2)
    assert planned.memory_bytes == pytest.approx(143771 * 2**20)
    assert machine_of([], None, None).memory_gb == GPUS["H100"].memory_gb
    shared = DriverCard("NVIDIA GB10", None, "580.95")
    assert machine_of([shared], None, None).memory_gb == GPUS["H100"].memory_gb


ALIKE = {name for name in PRESETS if name.startswith(("study-", "night-", "sd35-", "tiny-", "chunk-"))}
"""Presets that differ from others by variants or sizes alone."""


@pytest.mark.parametrize("name", [pytest.param(p, marks=pytest.mark.slow if p in ALIKE else ()) for p in PRESETS])
def test_the_small_copy_of_a_preset_is_valid_and_shared_by_all_processes(name: str) -> None:
    raw = composed(ROOT, name)
    params = parse_params(raw)
    variant = next(iter(params.variants))
    small = parse_params(overridden(raw, smaller(params, 8), [variant], name))
    assert (small.train.iterations, len(small.train.seeds), list(small.variants)) == (3, 1, [variant])
    assert (small.model, small.train.micro_batch_size) == (params.model, params.train.micro_batch_size)
    assert small.train.prompts_per_iteration <= params.train.prompts_per_iteration
    if name == "flux-dev":  # 2 updates of 12 images a prompt: 8 processes share 24 images an update
        assert small.train.prompts_per_iteration == 4
        assert "train.prompts_per_iteration=2" in smaller(params, 1)


def test_the_clone_sees_files_that_git_does_not_know(tmp_path: Path) -> None:
    root, clone = tmp_path / "root", tmp_path / "clone"
    (root / "data" / "kept").mkdir(parents=True)
    clone.mkdir()
    git(tmp_path, "init", "--quiet", str(root))
    (root / ".gitignore").write_text("/data/kept/\n/artifacts/\n")
    (root / "data" / "kept" / "weights").write_text("w")
    (root / "own.py").write_text("o")
    (root / "artifacts").mkdir()
    (root / "artifacts" / "table").write_text("t")
    link_data(root, clone)
    assert (clone / "data" / "kept" / "weights").read_text() == "w"
    assert (clone / "own.py").read_text() == "o"
    assert not (clone / "artifacts").exists()


def trial(**changes: Any) -> Any:
    """What a step reads of a `Trial`, as a measured run of smoke would have it."""
    params = preset("smoke")
    phases = [SimpleNamespace(name="update", bytes=12 * 2**30, parts={"context": 2 * 2**30})]
    cost = SimpleNamespace(seconds=SimpleNamespace(most=10.0))
    times = {"seconds_rollout": 4.0, "seconds_waiting_for_reward": 1.0, "seconds_update": 7.0}
    found = {
        "cards": [H100],
        "knows_rate": True,
        "small": params,
        "variant": "dance",
        "small_plan": SimpleNamespace(iterations=[cost], memory=phases),
        "stages": lambda: [{"stage": "train@dance-0", "GPU MiB": 10.5 * 1024}],
        "metrics": lambda timed=False: [times if timed else {"fidelity_later_p99": 1.9e-5}] * 3,
    }
    return SimpleNamespace(**found | changes)


def test_seconds_and_memory_may_exceed_the_plan_by_the_limits() -> None:
    found = plan_held(trial())
    assert found.outcome == "pass"
    assert found.numbers["GiB of train@dance-0, measured and planned"] == [10.5, 10.0]  # without the context
    slow = {"seconds_rollout": 14.0, "seconds_waiting_for_reward": 0.0, "seconds_update": 7.0}
    found = plan_held(trial(metrics=lambda timed: [slow] * 3))
    assert (found.outcome, found.said[:42]) == ("fail", "the fastest iteration took 21.0 s, planned")
    found = plan_held(trial(stages=lambda: [{"stage": "train@dance-0", "GPU MiB": 11.2 * 1024}]))
    assert found.said.startswith("train@dance-0 took 11.2 GiB of a GPU, planned 10.0.")
    found = plan_held(trial(cards=[UNKNOWN], knows_rate=False, metrics=lambda timed: [slow] * 3))
    assert found.outcome == "pass" and found.said.endswith("rate of Toy accelerator: give --tflops.")
    assert plan_held(trial(cards=[])).outcome == "not checked"
    of_encoders = [{"stage": "encode_prompts@profile", "GPU MiB": 99e3}]
    found = plan_held(trial(stages=lambda: of_encoders))
    assert found.outcome == "pass" and found.said.endswith("so that memory was not compared.")
    assert plan_held(trial(stages=lambda: of_encoders, knows_rate=False)).outcome == "not checked"


def test_rounding_may_move_ratios_by_a_fifth_of_the_clip_range() -> None:
    assert ratios(trial()).said == "p99 of the difference is 1.9e-05, 19.0% of the clip range 0.0001."
    found = ratios(trial(metrics=lambda: [{"fidelity_later_p99": 1e-6}, {}, {"fidelity_later_p99": 2.1e-5}]))
    assert found.outcome == "fail" and found.said.endswith("set train.old_log_probs: training.")
    # The first update takes its ratios as 1.
    assert ratios(trial(metrics=lambda: [{"fidelity_p99": 9e-5}])).outcome == "not checked"
    raw = composed(ROOT, "smoke")
    raw["train"]["old_log_probs"] = "training"  # the first update still compares with the rollout
    recomputed = parse_params(raw)
    found = ratios(trial(small=recomputed, metrics=lambda: [{"fidelity_p99": 9e-5, "fidelity_later_p99": 1e-5}]))
    assert found.outcome == "pass" and found.numbers["p99 of the first update by iteration"] == [9e-5]
    found = ratios(trial(small=recomputed, metrics=lambda: [{"fidelity_later_p99": 9e-5}]))
    assert found.outcome == "fail" and found.said.endswith("recomputed already: set a wider clip_range.")


def test_one_card_has_no_second_process() -> None:
    assert processes(trial()) == Found("not checked", "There is one GPU.")


def test_published_scores_are_computed_by_the_benchmark() -> None:
    scorers = parse_params(composed(ROOT, "flux-dev")).scorers
    own: Any = SimpleNamespace(references={"imagereward": ROOT, "hpsv3": ROOT}, hpsv3_python=ROOT, root=ROOT, say=print)
    for kind in accept_steps.KINDS:
        *_, module, asked, first, folder = (words := accept_steps.reference(own, kind, scorers[kind]))[:6]
        assert (module, asked, first, folder) == ("benchmarks.reference_scores", kind, "--images", str(ROOT))
        parsed = reference_scores._parser().parse_args(words[3:])
        assert str(parsed.model) == scorers[kind].model.checkpoint  # type: ignore[union-attr]
    own.params, own.references = SimpleNamespace(scorers=scorers), {}
    found = accept_steps.references(own)
    assert found.outcome == "not checked"
    assert found.numbers["imagereward"].startswith("not checked: needs --reference imagereward=FOLDER")
    assert found.numbers["pickscore"].endswith("known here of pickscore")


def fails(_: Trial) -> Found:
    raise StageFailed("train@a-0", 3, ["lines", "error: x.csv: must | have rows; add one", "later"])


def breaks(_: Trial) -> Found:
    raise KeyError("a bug")


def test_a_failure_leaves_the_other_steps_and_heads_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {
        "first": (fails, ()),
        "second": (lambda _: Found("pass", "Seen.", {"rows": [{"a": 1.0}], "b": {"c": [2.0, None]}}), ()),
        "third": (fails, ("first",)),
        "fourth": (breaks, ()),
    }
    monkeypatch.setattr(accept, "STEPS", steps)
    monkeypatch.setattr(accept, "visible_cards", list)
    assert call("accept", ["--preset", "smoke", "--out", str(tmp_path / "out")]) == 1
    page = (tmp_path / "out" / "acceptance.md").read_text()
    said = "stage train@a-0 failed with exit code 3 (bad input): x.csv: must \\| have rows; add one"
    assert page.splitlines()[0] == f"# smoke: failed at step 'first'. {said} Also failed: fourth."
    found = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    assert [step["outcome"] for step in found["steps"]] == ["fail", "pass", "not checked", "fail"]
    assert found["steps"][2]["said"] == "It needs the step 'first'."
    assert "see log.txt" in found["steps"][3]["said"]
    assert "KeyError: 'a bug'" in (tmp_path / "out" / "log.txt").read_text()
    assert "| 1 |" in page and "- b: c 2, none" in page
    assert "third: not checked" in capsys.readouterr().out


def test_a_stopped_call_leaves_a_page_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stops(_: Trial) -> Found:
        os.kill(os.getpid(), signal.SIGTERM)
        return Found("pass", "not reached")

    steps = {"first": (lambda _: Found("pass", "Seen."), ()), "second": (stops, ()), "third": (stops, ())}
    monkeypatch.setattr(accept, "STOP", StopSignal())  # that of the process would end all later trainings of tests
    monkeypatch.setattr(accept, "STEPS", steps)
    monkeypatch.setattr(accept, "visible_cards", list)
    assert call("accept", ["--preset", "smoke", "--out", str(tmp_path)]) == 75
    assert "stopped by SIGTERM; finished steps are on the page" in capsys.readouterr().err
    page = (tmp_path / "acceptance.md").read_text()
    assert page.startswith("# smoke: unfinished, second, third did not run;")


def test_an_error_that_explains_itself_needs_no_log() -> None:
    def check(_: Trial) -> Found:
        raise DataError("prompts.txt: must exist; write it")

    own: Any = SimpleNamespace(say=io.StringIO().write)
    assert accept.found_by(check, own).said == "prompts.txt: must exist; write it"


def test_a_reference_needs_a_known_kind_and_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("accept", ["--preset", "smoke", "--reference", "clip=."]) == 2
    assert "--reference: must be KIND=FOLDER, a kind of imagereward, hpsv3" in capsys.readouterr().err


def test_a_model_that_is_not_reachable_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse_params(composed(ROOT, "flux-dev")).model
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"model.checkpoint: black-forest-labs/FLUX.1-dev is no file or folder here"):
        accept_steps.reach_model(model)
    accept_steps.reach_model(model.model_copy(update={"checkpoint": "assets/tiny-flux"}))


@pytest.mark.slow
@pytest.mark.timeout(1500)  # five trainings, each by a process of DVC
def test_the_whole_command_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cards are made up, so that the step `processes` runs too, on CPUs, and so is the published curve."""
    monkeypatch.setattr(accept, "ROOT", make_checkout(tmp_path / "checkout"))
    monkeypatch.setattr(accept, "visible_cards", lambda: [UNKNOWN] * 4)
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    band = Band("chunk-ws", "reward_mean", 1, 1, (0.0, 1.0), (0.0, 1.0), "a page")
    monkeypatch.setitem(BANDS, "smoke", band)
    code = call("accept", ["--preset", "smoke", "--out", str(tmp_path / "out"), "--curve"])
    found = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    outcomes = {step["name"]: (step["outcome"], step["said"]) for step in found["steps"]}
    assert code == 0, outcomes
    assert [name for name, (outcome, _) in outcomes.items() if outcome != "pass"] == ["references", "plan held"]
    assert outcomes["resume"][1].endswith("the same bytes.")
    assert {row["stage"] for row in found["steps"][4]["numbers"]["stages"]} >= {
        "train@dance-0",
        "generate@dance-0",
        "try_scorers",
    }
    assert "with 4 processes" in outcomes["processes"][1] and "with 2." in outcomes["processes"][1]
    assert (tmp_path / "out" / "workspace" / "artifacts" / "report" / "index.html").exists()
    assert found["steps"][-1]["numbers"]["curve"][0]["iteration"] == 1
    assert (tmp_path / "out" / "curve.png").exists()
    assert "![picture](curve.png)" in (tmp_path / "out" / "acceptance.md").read_text()


def ended(**points: float) -> Found:
    """A curve with values `a`, `b`, … of iterations 1, 2, …, against a band of the means of two and three values."""
    band = Band("a", "reward", 2, 3, (0.1, 0.3), (0.6, 0.9), "a page")
    return compared(dict(enumerate(points.values(), 1)), band)


def test_a_curve_begins_and_ends_inside_the_published_range() -> None:
    found = ended(a=0.1, b=0.3, c=0.5, d=0.7, e=0.8, f=0.9)
    assert (found.outcome, found.said) == ("pass", "reward went from 0.200 to 0.800, within 0.6 to 0.9.")
    assert found.numbers["mean at the start and at the end"] == pytest.approx([0.2, 0.8])
    assert found.numbers["curve"][-1] == {"iteration": 6, "reward": 0.9}
    found = ended(a=0.5, b=0.5, c=0.7, d=0.7, e=0.7)
    assert found.outcome == "fail" and "should begin within 0.1 to 0.3. The base differs" in found.said
    for end in (0.5, 1.0):
        found = ended(a=0.2, b=0.2, c=end, d=end, e=end)
        assert found.outcome == "fail" and "should end within 0.6 to 0.9. Send this page." in found.said


@pytest.mark.parametrize("name", BANDS)
def test_a_published_curve_is_on_the_page_and_can_be_trained(name: str) -> None:
    band, params = BANDS[name], parse_params(composed(ROOT, name))
    start, end = (f"{low:g} to {high:g}" for low, high in (band.start, band.end))
    row = f"| `{name}`, {band.variant} | `{band.metric}` | {band.source} | {start} | {end} |"
    assert row in (ROOT / "docs" / "accept.md").read_text("utf-8")
    assert band.variant in params.variants
    kind, _, scorer = band.metric.partition("/")
    assert kind == "heldout_reward" or (kind == "reward" and scorer in params.rewards)


def real_trial(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """A trial of a preset without cards, which makes its workspace without running anything."""
    monkeypatch.setattr(Pipeline, "record_inputs", lambda self, log: {})
    raw = composed(ROOT, name)
    root = make_checkout(tmp_path / "checkout")
    log = io.StringIO()
    return Trial(root, tmp_path, parse_params(raw), raw, raw, [], machine_of([], None, None), log, {}, None, False)


def test_a_curve_is_trained_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(Pipeline, "run_due", lambda self, targets, log: ran.append(targets))
    found = curve(trial(params=preset("smoke")))
    assert found.outcome == "not checked" and found.said.endswith("there is one of sd35-medium-text, tiny.")
    own = real_trial(tmp_path, "tiny", monkeypatch)
    found = curve(own)
    assert found.outcome == "not checked" and found.said.startswith("With --curve nft is trained whole, at most 0.0 h")
    assert ran == [] and not list(tmp_path.glob("curve-*"))


def test_a_curve_goes_on_and_a_workspace_of_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = real_trial(tmp_path, "tiny", monkeypatch)
    band = BANDS["tiny"]
    for is_second in (False, True):
        own = replace(own)
        at = whole(own, band).pipeline.root
        assert list(parse_params(read_raw_params(at / "params.yaml")).variants) == ["nft"]
        assert (at / "kept").exists() == is_second
        (at / "kept").touch()
    assert at.name == f"curve-{own.commit[:12]}"
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "theirs").touch()
    with pytest.raises(ConfigError, match=r"workspace: must not exist, and cannot be replaced .*; choose --out"):
        _ = own.pipeline
    assert [path.name for path in (tmp_path / "workspace").iterdir()] == ["theirs"]

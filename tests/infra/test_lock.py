"""requirements.lock: the pins of constraints.txt, each with hashes."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"^([\w.-]+)(?:\[[\w, ]+\])?==([^ ;\\\n]+)", re.M)


def pins(name: str) -> dict[str, str]:
    found = PIN.findall((ROOT / name).read_text("utf-8"))
    return {re.sub(r"[-_.]+", "-", package).lower(): version.strip() for package, version in found}


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    """`make lock` writes it. ruamel.yaml.clib is an option of an older ruamel.yaml."""
    locked, tested = pins("requirements.lock"), pins("constraints.txt")
    assert {name: locked.get(name) for name in tested.keys() - {"ruamel-yaml-clib"}} == {
        name: version for name, version in tested.items() if name != "ruamel-yaml-clib"
    }


def test_every_locked_package_has_hashes() -> None:
    blocks = re.split(r"\n(?=[\w.-]+(?:\[|==))", (ROOT / "requirements.lock").read_text("utf-8"))[1:]
    assert len(blocks) == len(pins("requirements.lock"))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)

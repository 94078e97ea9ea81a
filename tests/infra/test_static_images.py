"""infra/docker: the linter's rules, and ours: pinned, no secrets, no root, a health check."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pytest

from infra.automations import HEARTBEAT_SECONDS
from tests.infra.deployment_files import HOME, INFRA, PINNED, ROOT, SECRET, UID, is_known, lint

DOCKERFILE = INFRA / "docker" / "Dockerfile"
TARGETS = ("cpu", "gpu", "dispatcher")


@dataclass
class Stage:
    """A stage of the Dockerfile: what it starts from and its (instruction, rest) pairs, comments left out."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.instructions if name == instruction]


def parse() -> tuple[dict[str, str], dict[str, Stage]]:
    """ARGs before the first FROM with their defaults, and the stages by name."""
    text = "".join(
        line for line in DOCKERFILE.read_text("utf-8").splitlines(True) if not line.startswith("#")
    )
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        instruction, rest = line.split(maxsplit=1)
        if instruction == "FROM":
            base, name = rest.split(" AS ")
            stages[name] = Stage(base)
        elif not stages:
            arguments.update([rest.split("=", 1)])
        else:
            list(stages.values())[-1].instructions.append((instruction, rest))
    return arguments, stages


ARGUMENTS, STAGES = parse()


def chain(target: str) -> list[tuple[str, str]]:
    """Every instruction that the image `target` inherits or has itself, in order."""
    stage = STAGES[target]
    return [*(chain(stage.base) if stage.base in STAGES else []), *stage.instructions]


def last(target: str, instruction: str) -> str:
    return [rest for name, rest in chain(target) if name == instruction][-1]


def test_hadolint() -> None:
    lint("hadolint", "--no-color", DOCKERFILE)


def test_every_base_image_is_pinned() -> None:
    outside = {stage.base for stage in STAGES.values()} - STAGES.keys()
    assert outside == {"${PYTHON_IMAGE}"}
    assert re.fullmatch(PINNED, ARGUMENTS["PYTHON_IMAGE"])
    assert ARGUMENTS["PYTHON_IMAGE"].count(".") >= 3, "name a patch release: 3.11.15, not 3.11"


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_without_root_under_an_init_and_knows_its_health(target: str) -> None:
    assert STAGES[target].all("USER") == [f"{UID}:{UID}"]
    lingers = "" if target == "dispatcher" else ', "python", "-m", "infra.linger"'
    assert last(target, "ENTRYPOINT") == f'["tini", "--"{lingers}]'
    assert "CMD" in last(target, "HEALTHCHECK")
    assert "--with-healthcheck" in last(target, "CMD")
    assert last(target, "VOLUME") == HOME
    assert last(target, "WORKDIR") == "/opt/chunk-grpo"


@pytest.mark.parametrize("target", TARGETS)
def test_the_last_thing_copied_is_from_a_stage_of_this_file(target: str) -> None:
    """Multi-stage: neither pip's caches nor the build context reach an image."""
    for source in [rest for name, rest in chain(target) if name in ("COPY", "ADD")]:
        assert source.startswith("--from=")
        assert source.split()[0].removeprefix("--from=") in STAGES


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_an_image_holds_the_repository_where_the_environment_says(target: str) -> None:
    environment = dict(re.findall(r"(\w+)=(\S+)", last(target, "ENV") + last("runtime", "ENV")))
    assert environment["CHUNK_GRPO_REPOSITORY"] == "/opt/chunk-grpo"
    assert environment["PREFECT_HOME"] == HOME
    assert environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == str(HEARTBEAT_SECONDS)
    owner = f"--chown={UID}:{UID}"
    assert f"--from=repository {owner} /opt/chunk-grpo /opt/chunk-grpo" in STAGES[target].all("COPY")


def test_every_variable_is_known_and_none_is_a_secret() -> None:
    names = [
        name for stage in STAGES.values() for line in stage.all("ENV") for name in re.findall(r"(\w+)=", line)
    ]
    assert len(names) > 8
    assert [name for name in names if not is_known(name)] == []
    build = [line.split("=")[0] for stage in STAGES.values() for line in stage.all("ARG")]
    assert sorted(build) == ["ORIGIN", "TORCH_INDEX"]
    assert [name for name in [*names, *build, *ARGUMENTS] if SECRET.search(name)] == []


def test_the_build_context_has_what_is_copied_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule.removeprefix("!") for rule in rules[1:]}
    assert all(rule.startswith("!") for rule in rules[1:])
    sources = [
        source
        for stage in STAGES.values()
        for line in stage.all("COPY")
        if not line.startswith("--from=")
        for source in line.split()[:-1]
    ]
    assert set(sources) == allowed


def test_the_packages_are_those_of_the_makefile() -> None:
    extras = re.search(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert extras is not None
    wanted = f"pip install -e '.[{extras.group(1).removesuffix(',dev')}]' -c constraints.txt"
    for pool in ("cpu", "gpu"):
        assert any(wanted in run for run in STAGES[f"packages-{pool}"].all("RUN"))


def test_torch_is_found_in_the_constraints() -> None:
    """As the stage packages-cpu looks for it."""
    assert "grep -x 'torch==[0-9.]*' constraints.txt" in STAGES["packages-cpu"].all("RUN")[0]
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert len([line for line in lines if re.fullmatch(r"torch==[0-9.]*", line)]) == 1


def test_the_dispatchers_packages_are_exact_and_not_pinned_twice() -> None:
    def pins(name: str) -> dict[str, str]:
        lines = [line for line in (ROOT / name).read_text("utf-8").splitlines() if not line.startswith("#")]
        assert all("==" in line for line in lines)
        return {line.split("==")[0].lower().replace("_", "-"): line.split("==")[1] for line in lines if line}

    own, common = pins("infra/docker/dispatcher.txt"), pins("constraints.txt")
    assert {"prefect-kubernetes", "prefect-aws"} <= own.keys()
    assert own.keys() & common.keys() == set()
    assert own["boto3"] == common["botocore"]


def test_every_mention_of_an_image_of_ours_has_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert version is not None
    files = [*INFRA.rglob("*.yaml"), *INFRA.rglob("*.json"), DOCKERFILE, ROOT / "docs" / "deploy.md"]
    mentions = {
        (path.name, tag)
        for path in files
        for tag in re.findall(r"chunk-grpo-(?:cpu|gpu|dispatcher):(\S+?)[\s\"`]", path.read_text("utf-8"))
    }
    assert len(mentions) >= 6
    assert {tag for _, tag in mentions} == {version.group(1)}

"""infra/docker: the linter's rules, and ours: pinned, no secrets, no root, a health check; and docs/deploy.md."""

import re

import prefect.settings
import pytest

from tests.infra.deployment_files import HOME, INFRA, ROOT, SECRET, UID, is_known, lint

DOCKERFILE = INFRA / "docker" / "Dockerfile"
Instructions = list[tuple[str, str]]


def parse() -> tuple[dict[str, str], dict[str, str], dict[str, Instructions]]:
    """ARGs before the first FROM with their defaults; and of each stage what it starts from, and its instructions."""
    lines = [line for line in DOCKERFILE.read_text("utf-8").splitlines(True) if not line.startswith("#")]
    arguments: dict[str, str] = {}
    bases: dict[str, str] = {}
    stages: dict[str, Instructions] = {}
    for line in filter(str.strip, "".join(lines).replace("\\\n", " ").splitlines()):
        instruction, rest = line.split(maxsplit=1)
        if instruction == "FROM":
            base, name = rest.split(" AS ")
            bases[name], stages[name] = base, []
        elif not stages:
            arguments.update([rest.split("=", 1)])
        else:
            list(stages.values())[-1].append((instruction, rest))
    return arguments, bases, stages


ARGUMENTS, BASES, STAGES = parse()
ALL = [pair for stage in STAGES.values() for pair in stage]


def chain(target: str) -> Instructions:
    """Every instruction that the image `target` inherits or has itself, in order."""
    return [*(chain(BASES[target]) if BASES[target] in STAGES else []), *STAGES[target]]


def last(target: str, instruction: str) -> str:
    return [rest for name, rest in chain(target) if name == instruction][-1]


def test_hadolint() -> None:
    lint("hadolint", "--no-color", DOCKERFILE)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_an_image_holds_the_repository_where_the_environment_says(target: str) -> None:
    """As a user without root, with the heartbeat that the server expects."""
    environment = dict(re.findall(r"(\w+)=(\S+)", last(target, "ENV") + last("runtime", "ENV")))
    place = environment["CHUNK_GRPO_REPOSITORY"]
    assert ("COPY", f"--from=repository --chown={UID}:{UID} {place} {place}") in STAGES[target]
    assert (last(target, "WORKDIR"), last(target, "USER")) == (place, f"{UID}:{UID}")
    assert last(target, "ENTRYPOINT") == '["tini", "--", "python", "-m", "infra.linger"]'
    assert environment["PREFECT_HOME"] == last(target, "VOLUME") == HOME
    assert environment["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"


def test_every_variable_is_known_and_none_is_a_secret() -> None:
    names = [name for kind, line in ALL if kind == "ENV" for name in re.findall(r"(\w+)=", line)]
    assert len(names) > 8
    assert [name for name in names if not is_known(name)] == []
    build = [line.split("=")[0] for kind, line in ALL if kind == "ARG"]
    assert [name for name in [*names, *build, *ARGUMENTS] if SECRET.search(name)] == []


def test_the_build_context_has_what_is_copied_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    first, *rules = [line for line in lines if line and not line.startswith("#")]
    copies = [line for kind, line in ALL if kind == "COPY" and not line.startswith("--from=")]
    assert first == "*"
    assert set(rules) == {f"!{source}" for line in copies for source in line.split()[:-1]}


def test_the_packages_are_those_of_the_makefile() -> None:
    extras = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M)[0]
    for pool in ("cpu", "gpu"):
        runs = [rest for kind, rest in STAGES[f"packages-{pool}"] if kind == "RUN"]
        assert any(f"pip install -e '.[{extras}]' -c constraints.txt" in run for run in runs)
    # As the stage packages-cpu looks for torch.
    assert "grep -x 'torch==[0-9.]*' constraints.txt" in last("packages-cpu", "RUN")
    assert len(re.findall(r"^torch==[0-9.]*$", (ROOT / "constraints.txt").read_text("utf-8"), re.M)) == 1


def test_the_dispatchers_packages_are_not_pinned_twice() -> None:
    files = (ROOT / "infra" / "docker" / "dispatcher.txt", ROOT / "constraints.txt")
    own, common = ({n.lower() for n in re.findall(r"^([\w-]+)==", f.read_text("utf-8"), re.M)} for f in files)
    assert own and own & common == set()


def test_every_mention_of_an_image_of_ours_has_the_version_of_the_package() -> None:
    version = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    files = [*INFRA.rglob("*.yaml"), *INFRA.rglob("*.json"), DOCKERFILE, ROOT / "docs" / "deploy.md"]
    image = re.compile(r"chunk-grpo-(?:cpu|gpu|dispatcher)(?::|, prefectTag: )([^\s\"`}]+)")
    mentions = [tag for path in files for tag in image.findall(path.read_text("utf-8"))]
    assert len(mentions) >= 6
    assert set(mentions) == set(version)


def test_every_setting_of_prefect_on_the_page_exists() -> None:
    names = set(re.findall(r"`(PREFECT_[A-Z_]+)", (ROOT / "docs" / "deploy.md").read_text("utf-8")))
    assert len(names) > 8
    assert [n for n in names if "_INTEGRATIONS_" not in n and not hasattr(prefect.settings, n)] == []

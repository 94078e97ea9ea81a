"""Base job templates of Kubernetes and ECS: placeholders, variables and their defaults fit each other."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from prefect.utilities.templating import find_placeholders

from infra.setup import SetUp
from tests.infra.deployment_files import INFRA, POOLS, SECRET, rendered, strings, template, variables

KINDS = ("kubernetes", "aws")
FILLED_IN = {"name", "command"}
"""By Prefect, for each flow run."""

every_template = pytest.mark.parametrize(
    "base",
    [template(kind, pool) for kind in KINDS for pool in POOLS],
    ids=[f"{k}-{p}" for k in KINDS for p in POOLS],
)


@every_template
def test_every_placeholder_is_a_variable_and_every_variable_is_used(base: dict[str, Any]) -> None:
    assert base.keys() == {"job_configuration", "variables"}
    used = {placeholder.name for placeholder in find_placeholders(base["job_configuration"])}
    assert used == variables(base).keys()


@every_template
def test_every_variable_is_explained_and_its_default_allowed(base: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(base["variables"])
    for name, schema in variables(base).items():
        assert schema["title"] and schema["description"].endswith("."), name
        assert ("default" in schema) == (name not in FILLED_IN), name
        if "default" in schema:
            jsonschema.validate(schema["default"], schema)


@every_template
def test_the_variables_are_all_that_may_be_set(base: dict[str, Any]) -> None:
    """A value of a wrong type is refused, as Prefect's server does."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"image": 3}, base["variables"])


@every_template
def test_nothing_is_left_to_fill_in(base: dict[str, Any]) -> None:
    configuration = rendered(base, name="curious-owl", command="prefect flow-run execute")
    assert [each for each in strings(configuration) if "{{" in each] == []


@every_template
def test_no_secret_is_a_variable_of_the_environment(base: dict[str, Any]) -> None:
    assert variables(base)["env"]["default"] == {}
    literal = [each for each in strings(base["job_configuration"]) if each.isupper() and SECRET.search(each)]
    assert literal == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_two_pools_differ_by_the_gpu_alone(kind: str) -> None:
    cpu, gpu = (set(variables(template(kind, pool))) for pool in POOLS)
    assert gpu - cpu <= {"gpu_count"}
    assert cpu <= gpu


@pytest.mark.parametrize(("kind", "type_"), [("kubernetes", "kubernetes"), ("aws", "ecs")])
def test_the_set_up_makes_pools_with_them(kind: str, type_: str) -> None:
    files = {pool: INFRA / kind / f"{pool}.json" for pool in POOLS}
    pools = SetUp(pool_type=type_, templates=files).pools()
    assert [(pool.name, pool.type, pool.template) for pool in pools] == [
        (pool, type_, template(kind, pool)) for pool in POOLS
    ]

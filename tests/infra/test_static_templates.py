"""Base job templates of Kubernetes and ECS: placeholders, variables and their defaults fit each other."""

import jsonschema
import pytest
from prefect.utilities.templating import find_placeholders

from tests.infra.deployment_files import POOLS, SECRET, rendered, strings, template, variables

FILLED_IN = {"name", "command"}
"""Variables of a template that Prefect fills in for each flow run."""


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("kind", ["kubernetes", "aws"])
def test_every_variable_is_used_explained_and_its_default_allowed(kind: str, pool: str) -> None:
    base = template(kind, pool)
    assert {each.name for each in find_placeholders(base["job_configuration"])} == variables(base).keys()
    jsonschema.Draft202012Validator.check_schema(base["variables"])
    for name, schema in variables(base).items():
        assert schema["title"] and schema["description"].endswith("."), name
        assert ("default" in schema) == (name not in FILLED_IN), name
        if "default" in schema:
            jsonschema.validate(schema["default"], schema)
    configuration = rendered(base, name="curious-owl", command="prefect flow-run execute")
    assert [each for each in strings(configuration) if "{{" in each] == []
    assert [each for each in strings(configuration) if each.isupper() and SECRET.search(each)] == []
    assert variables(base).keys() - variables(template(kind, "cpu")).keys() <= {"gpu_count", "machines"}

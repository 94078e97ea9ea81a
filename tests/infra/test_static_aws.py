"""infra/aws: cfn-lint, AWS's own model of the ECS requests, and ours: least privilege, nothing public."""

import re
from typing import Any

import botocore.loaders
import botocore.model
import botocore.validate
import pytest
import yaml

from tests.infra.deployment_files import HOME, INFRA, POOLS, UID, is_known, lint, rendered, strings, template

TEMPLATE = INFRA / "aws" / "bucket.yaml"
TOKEN = {"name": "HF_TOKEN", "valueFrom": "arn:aws:secretsmanager:REGION:ACCOUNT:secret:chunk-grpo/tokens/hub-1"}


class _Loader(yaml.SafeLoader):
    """Reads CloudFormation's short forms (!Ref, !Sub, !GetAtt) as the text behind them."""


_Loader.add_multi_constructor("!", lambda loader, tag, node: f"!{tag} {node.value}")
RESOURCES: dict[str, Any] = yaml.load(TEMPLATE.read_text("utf-8"), _Loader)["Resources"]


def statements(resource: str) -> list[dict[str, Any]]:
    return list(RESOURCES[resource]["Properties"]["PolicyDocument"]["Statement"])


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def request_errors(definition: dict[str, Any]) -> str:
    """Problems that botocore finds in a RegisterTaskDefinition request; empty if there are none."""
    service = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("ecs", "service-2"))
    shape = service.operation_model("RegisterTaskDefinition").input_shape
    return str(botocore.validate.ParamValidator().validate(definition, shape).generate_report())


def test_cfn_lint() -> None:
    lint("cfn-lint", TEMPLATE)


@pytest.mark.parametrize("pool", POOLS)
def test_a_flow_run_on_ecs_fits_the_request_and_has_no_root_and_no_secret_by_value(pool: str) -> None:
    configuration = rendered(template("aws", pool), secrets=[TOKEN])
    definition = configuration["task_definition"]
    assert request_errors(definition) == ""
    (container,) = definition["containerDefinitions"]
    assert container["user"] == f"{UID}:{UID}"
    assert container["linuxParameters"]["capabilities"] == {"drop": ["ALL"]}
    assert container["mountPoints"] == [{"sourceVolume": "home", "containerPath": HOME}]
    assert all(is_known(each["name"]) for each in container["environment"])
    assert container["secrets"] == [TOKEN]
    assert configuration["prefect_api_auth_string_secret_arn"].startswith("arn:aws:secretsmanager:")
    allowed = RESOURCES["ExecutionRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"][0]
    assert allowed["Resource"][1].endswith(":secret:chunk-grpo/tokens/*")
    # Fargate has no GPUs.
    assert ("resourceRequirements" in container) == (pool == "gpu")
    assert definition["requiresCompatibilities"] == ["EC2" if pool == "gpu" else "FARGATE"]


def test_template_placeholders_are_documented() -> None:
    text = (INFRA.parent / "docs" / "deploy.md").read_text("utf-8")
    known = ("ENABLED", "DISABLED", "FARGATE", "EC2", "GPU", "ALL")
    given = [each for pool in POOLS for each in strings(rendered(template("aws", pool)))]
    given = [each for each in given if not is_known(each) and each not in known]
    words = {word for each in given for word in re.findall(r"\b[A-Z][A-Z_]{2,}\b", each)}
    assert {"ACCOUNT", "REGION", "BUCKET", "SUBNET", "FILE_SYSTEM"} <= words
    assert [word for word in sorted(words) if f"`{word}`" not in text] == []


def test_a_policy_allows_named_actions_on_named_resources_and_no_removal_from_the_remote() -> None:
    for statement in (*statements("StorePolicy"), *statements("DispatcherPolicy")):
        assert statement["Effect"] == "Allow"
        assert all("*" not in action for action in listed(statement["Action"]))
        if statement["Sid"] != "Define":  # these actions know no narrower resource
            assert "*" not in listed(statement["Resource"])
    removing = [each for each in statements("StorePolicy") if "Delete" in str(each["Action"])]
    removed = ["!Sub ${Bucket.Arn}/published/*", "!Sub ${Bucket.Arn}/checkpoints/*"]
    assert [each["Resource"] for each in removing] == [removed]


def test_the_bucket_is_private_and_loses_nothing() -> None:
    bucket, properties = RESOURCES["Bucket"], RESOURCES["Bucket"]["Properties"]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"
    # DVC finds its objects by content, whatever their age.
    assert all("ExpirationInDays" not in rule for rule in properties["LifecycleConfiguration"]["Rules"])

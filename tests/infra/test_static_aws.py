"""infra/aws: cfn-lint, AWS's own model of the ECS requests, and ours: least privilege, nothing public."""

from __future__ import annotations

import re
from typing import Any

import botocore.loaders
import botocore.model
import botocore.validate
import pytest
import yaml

from tests.infra.deployment_files import HOME, INFRA, POOLS, UID, is_known, lint, rendered, strings, template

TEMPLATE = INFRA / "aws" / "bucket.yaml"


class _Loader(yaml.SafeLoader):
    """Reads CloudFormation's short forms (!Ref, !Sub, !GetAtt) as the text behind them."""


_Loader.add_multi_constructor("!", lambda loader, tag, node: f"!{tag} {node.value}")
RESOURCES: dict[str, Any] = yaml.load(TEMPLATE.read_text("utf-8"), _Loader)["Resources"]


def statements(resource: str) -> list[dict[str, Any]]:
    return list(RESOURCES[resource]["Properties"]["PolicyDocument"]["Statement"])


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def task_definition(pool: str) -> dict[str, Any]:
    return dict(rendered(template("aws", pool))["task_definition"])


def request_errors(definition: dict[str, Any]) -> str:
    """What botocore would refuse in a RegisterTaskDefinition request; empty when it would send it."""
    service = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("ecs", "service-2"))
    shape = service.operation_model("RegisterTaskDefinition").input_shape
    return str(botocore.validate.ParamValidator().validate(definition, shape).generate_report())


def test_cfn_lint() -> None:
    lint("cfn-lint", TEMPLATE)


@pytest.mark.parametrize("pool", POOLS)
def test_a_task_definition_fits_the_model_of_the_request(pool: str) -> None:
    assert request_errors(task_definition(pool)) == ""


@pytest.mark.parametrize("pool", POOLS)
def test_a_flow_run_on_ecs_has_no_root_its_state_and_no_secret_by_value(pool: str) -> None:
    definition = task_definition(pool)
    container = definition["containerDefinitions"][0]
    assert container["user"] == f"{UID}:{UID}"
    assert container["linuxParameters"]["capabilities"] == {"drop": ["ALL"]}
    assert container["mountPoints"] == [{"sourceVolume": "home", "containerPath": HOME}]
    assert definition["volumes"][0]["efsVolumeConfiguration"]["transitEncryption"] == "ENABLED"
    # With this role, not with that of the request, ECS mounts the file system.
    assert definition["taskRoleArn"] == "arn:aws:iam::ACCOUNT:role/chunk-grpo-task"
    assert definition["volumes"][0]["efsVolumeConfiguration"]["authorizationConfig"]["iam"] == "ENABLED"
    assert all(is_known(each["name"]) for each in container["environment"])
    secret = rendered(template("aws", pool))["prefect_api_auth_string_secret_arn"]
    assert secret.startswith("arn:aws:secretsmanager:")


@pytest.mark.parametrize("pool", POOLS)
def test_a_token_comes_from_the_secrets_manager(pool: str) -> None:
    token = {
        "name": "HF_TOKEN",
        "valueFrom": "arn:aws:secretsmanager:REGION:ACCOUNT:secret:chunk-grpo/tokens/hub-1",
    }
    definition = rendered(template("aws", pool), secrets=[token])["task_definition"]
    assert definition["containerDefinitions"][0]["secrets"] == [token]
    assert request_errors(definition) == ""
    allowed = RESOURCES["ExecutionRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"][0]
    assert allowed["Resource"][1].endswith(":secret:chunk-grpo/tokens/*")


def test_a_gpu_is_asked_for_where_ecs_has_them() -> None:
    gpu, cpu = task_definition("gpu"), task_definition("cpu")
    assert gpu["containerDefinitions"][0]["resourceRequirements"] == [{"type": "GPU", "value": "1"}]
    assert gpu["containerDefinitions"][0]["linuxParameters"]["sharedMemorySize"] == 16384
    assert (gpu["requiresCompatibilities"], cpu["requiresCompatibilities"]) == (["EC2"], ["FARGATE"])
    # Fargate has neither.
    assert "resourceRequirements" not in cpu["containerDefinitions"][0]
    assert "sharedMemorySize" not in cpu["containerDefinitions"][0]["linuxParameters"]


def test_what_is_to_be_replaced_is_said_in_the_documentation() -> None:
    text = (INFRA.parent / "docs" / "deploy.md").read_text("utf-8")
    words = {
        word
        for pool in POOLS
        for each in strings(rendered(template("aws", pool)))
        if not is_known(each) and each not in ("ENABLED", "DISABLED", "FARGATE", "EC2", "GPU", "ALL")
        for word in re.findall(r"\b[A-Z][A-Z_]{2,}\b", each)
    }
    assert {"ACCOUNT", "REGION", "BUCKET", "SUBNET", "FILE_SYSTEM"} <= words
    assert [word for word in sorted(words) if f"`{word}`" not in text] == []


def test_no_action_is_a_wildcard_and_every_resource_is_named() -> None:
    for policy in ("StorePolicy", "DispatcherPolicy"):
        for statement in statements(policy):
            assert statement["Effect"] == "Allow"
            assert all("*" not in action for action in listed(statement["Action"]))
            if statement["Sid"] != "Define":  # these actions know no narrower resource
                assert "*" not in listed(statement["Resource"])


def test_a_flow_run_removes_nothing_but_what_is_published() -> None:
    allowed = {
        action: listed(each["Resource"])
        for each in statements("StorePolicy")
        for action in listed(each["Action"])
    }
    assert allowed["s3:DeleteObject"] == ["!Sub ${Bucket.Arn}/published/*"]
    prefixes = ["!Sub ${Bucket.Arn}/dvc/*", "!Sub ${Bucket.Arn}/published/*"]
    assert allowed["s3:GetObject"] == allowed["s3:PutObject"] == prefixes
    assert {action for action in allowed if "Delete" in action} == {"s3:DeleteObject"}


def test_the_bucket_is_private_encrypted_versioned_and_outlives_the_stack() -> None:
    bucket = RESOURCES["Bucket"]
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    assert bucket["Properties"]["VersioningConfiguration"] == {"Status": "Enabled"}
    assert "BucketEncryption" in bucket["Properties"]
    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"
    rules = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert all(
        "ExpirationInDays" not in rule for rule in rules
    )  # DVC finds its objects by content, whatever their age
    denied = statements("BucketPolicy")[0]
    assert (denied["Effect"], denied["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": False}})

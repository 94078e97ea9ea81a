"""Validate params.yaml, and record it, the code, and the content of the user's files.

The other stages depend on the records, and read the recorded parameters and code, so that edits during a run count from
the next one. This stage always runs. Unchanged files give identical records, so that no other stage runs again.
"""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from chunk_grpo.artifacts import output_dir, write_json
from chunk_grpo.code import COPY, ROOT, code_records, copy_code, is_under_dvc
from chunk_grpo.config import Params
from chunk_grpo.config.forbidden import texts
from chunk_grpo.digests import Digests
from chunk_grpo.errors import ConfigError
from chunk_grpo.library.checked_model import check_model
from chunk_grpo.prompts.recorded import prompt_records
from chunk_grpo.recorded import compared_record, model_record, start_record, training_settings
from chunk_grpo.scorers.running.recorded import scorer_records
from stages._stage import run_stage, writes

_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|KEY|AUTH_STRING)(_|$)")
"""Part of the names of environment variables that hold secrets."""

_SECRET_LENGTH = 8
"""Shorter values could be ordinary words."""


@dataclass(frozen=True)
class Arguments:
    settings: str = writes("JSON: params.yaml, as the other stages read it")
    codes: str = writes("folder for STAGE.json: content of each stage's files of code")
    model: str = writes("JSON: content of the base model's files")
    prompts: str = writes("JSON: content of the prompt files")
    scorers: str = writes("JSON: settings of each scorer, and content of its code and files")
    variants: str = writes(
        "folder for VARIANT.json: settings of each variant's training, and content of the policy it starts from"
    )
    policies: str = writes("folder for NAME.json: each compared policy, and content of its files")
    names: str = writes("JSON: names in the order of params.yaml; DVC ignores that order")


def name_records(params: Params) -> dict[str, list[str]]:
    """Names in the order of params.yaml, which is the order in the report."""
    mappings: dict[str, Mapping[str, object]] = {
        "variants": params.variants,
        "scorers": params.scorers,
        "plans": params.chunks.plans,
        "benchmarks": params.prompts.benchmarks,
        "policies": params.policies,
    }
    return {key: list(mapping) for key, mapping in mappings.items()}


def require_no_secrets(params: Params) -> None:
    """Require that no value of params.yaml is a secret of the environment; `dvc exp run -S` can write one into it.

    The error does not repeat it.
    """
    secrets = {
        value: name for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= _SECRET_LENGTH
    }
    for path, text, _ in texts(params.model_dump(mode="json")):
        for name in (name for value, name in secrets.items() if value in text):
            raise ConfigError(
                f"{'.'.join(map(str, path))}: must not hold the value of the environment variable {name}, which is a "
                "secret, because reports and commits show params.yaml; remove it there and from the overrides"
            )


def main(params: Params, arguments: Arguments) -> None:
    """Write one record per kind of file."""
    require_no_secrets(params)
    digests = Digests()
    model = model_record(params.model, digests)
    start = start_record(params, digests)
    check_model(params, model, start)
    write_json(params.model_dump(mode="json"), arguments.settings)
    if is_under_dvc():  # elsewhere nobody edits the code: a run of a flow has a clone of its own
        copy_code()
    with output_dir(arguments.codes) as folder:
        for name, record in code_records(COPY if is_under_dvc() else ROOT).items():
            write_json(record, str(folder / f"{name}.json"))
    write_json(model, arguments.model)
    write_json(prompt_records(params, digests), arguments.prompts)
    write_json(scorer_records(params, digests), arguments.scorers)
    with output_dir(arguments.variants) as folder:
        for name in params.variants:
            settings = training_settings(params, name)
            write_json({**settings, "start": start}, str(folder / f"{name}.json"))
    with output_dir(arguments.policies) as folder:
        for name in params.policies:
            write_json(compared_record(params, name, digests), str(folder / f"{name}.json"))
    write_json(name_records(params), arguments.names)
    digests.save()


if __name__ == "__main__":
    sys.exit(run_stage(main, Arguments))

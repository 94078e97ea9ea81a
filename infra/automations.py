"""What the Prefect server does by itself: end lost flow runs, run them once more, and tell somebody.

Each automation is known by its name. Whether it is switched on is the user's choice, which is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CallWebhook, ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.types import SecretDict
from pydantic import SecretStr

from chunk_grpo.environment import SCORE_MOVED

HEARTBEAT_SECONDS = 30
"""A flow run says so often that it lives; the shortest time that Prefect allows."""
LOST_AFTER_SECONDS = 120
"""A flow run without a heartbeat for so long is lost."""
AGAIN_AFTER_SECONDS = 30
"""A lost flow run is run once more so much later: a worker reports the end of one process twice, seconds apart."""
STARTED_WITHIN_SECONDS = 900
"""A flow run that a process worker took, and that does not run after so long, is lost."""
CONTAINER_STARTED_WITHIN_SECONDS = 6 * 3600
"""The same for containers, which Kubernetes and ECS start: they may wait for a machine, and fetch 10 GB, but one whose
image is not there waits for ever."""
WATCH_RUNNING = "chunk-grpo.watch.running"
WATCH_PENDING = "chunk-grpo.watch.pending"
"""Events that set-up sends for flow runs that nobody may have watched: from now on the time counts."""
"""The event of flows/reevaluate.py: a score has left its confidence interval."""

TAG = "chunk-grpo"
FLOW = "chunk-grpo"
WEBHOOK_BLOCK = "chunk-grpo-notify"

TAG_RESOURCE = {"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"}
"""How an event says that it is about something of ours."""


_FLOW_RUN = {"prefect.resource.id": "prefect.flow-run.*"}
_FLOW_OURS = {"prefect.resource.role": "flow", "prefect.resource.name": FLOW}
_DEPLOYMENT = {"prefect.resource.role": "deployment"}
_PROCESS_POOL = {"prefect.resource.role": "work-pool", "prefect.work-pool.type": "process"}
_CONTAINER_POOL = _PROCESS_POOL | {"prefect.work-pool.type": "!process"}
_TAKEN = {f"prefect.flow-run.{state}" for state in ("Pending", "Submitting", "InfrastructurePending")}
"""The events of the states through which a worker leads a flow run before it runs; each begins the wait anew."""


def supervision(
    process_seconds: float = STARTED_WITHIN_SECONDS,
    container_seconds: float = CONTAINER_STARTED_WITHIN_SECONDS,
) -> list[AutomationCore]:
    """The automations that every server gets.

    Args:
        process_seconds: how long the process of a flow run may take to start.
        container_seconds: how long a container may.
    """
    return [_crash_silent(), *_crash_never_started(process_seconds, container_seconds), _run_once_more()]


def notifications(url: SecretStr) -> list[AutomationCore]:
    """The automations that call a webhook, which Prefect keeps encrypted in a block."""
    block = Webhook(url=url, headers=SecretDict({"Content-Type": "application/json"}))
    saved = block.save(WEBHOOK_BLOCK, overwrite=True)
    assert isinstance(saved, UUID)
    return [*_tell_ended(saved), _tell_moved(saved)]


def apply(client: SyncPrefectClient, wanted: Sequence[AutomationCore]) -> None:
    """Create what is not there, change what is different, leave the rest alone.

    An automation that is written again forgets the flow runs that it watches; so it is not done without need.
    """
    for automation in wanted:
        existing = client.read_automations_by_name(automation.name)
        if not existing:
            client.create_automation(automation)
            continue
        first, *doubles = existing
        for double in doubles:
            client.delete_automation(double.id)
        new = automation.model_copy(update={"enabled": first.enabled})
        if AutomationCore.model_validate(first.model_dump()) != new:
            # The server takes no owner in a change.
            changed = AutomationCore.model_validate(new.model_dump(exclude={"owner_resource"}))
            client.update_automation(first.id, changed)


def _labels(labels: Mapping[str, str]) -> ResourceSpecification:
    return ResourceSpecification(dict(labels.items()))


def _crash_silent() -> AutomationCore:
    """Any event of the run but its heartbeat ends the wait: every state has one, with the name of the state.

    The server refuses to mark a run as crashed that has ended.
    """
    return AutomationCore(
        name="chunk-grpo: end lost runs",
        description=f"No heartbeat for {LOST_AFTER_SECONDS} s: the run's process or machine is gone.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat", "prefect.flow-run.Running", WATCH_RUNNING},
            expect={"prefect.flow-run.*"},
            match=_labels(_FLOW_RUN),
            match_related=_labels(TAG_RESOURCE),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=LOST_AFTER_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"No heartbeat for {LOST_AFTER_SECONDS} s: its process or its machine is gone.",
            )
        ],
    )


def _crash_never_started(process_seconds: float, container_seconds: float) -> list[AutomationCore]:
    """Nobody else ends these: the worker is gone, or has handed the run over and does not look after it."""
    return [
        _never_started(
            "chunk-grpo: end runs that never started",
            _PROCESS_POOL,
            process_seconds,
            "Its worker was lost: not running",
        ),
        _never_started(
            "chunk-grpo: end runs whose container never started",
            _CONTAINER_POOL,
            container_seconds,
            "No image, no machine, or its worker was lost: not running",
        ),
    ]


def _never_started(name: str, pool: Mapping[str, str], seconds: float, reason: str) -> AutomationCore:
    return AutomationCore(
        name=name,
        description=f"Taken by a worker, and not running {seconds:.0f} s later.",
        trigger=EventTrigger(
            after=_TAKEN | {WATCH_PENDING},
            expect={"prefect.flow-run.*"},
            match=_labels(_FLOW_RUN),
            match_related=[_labels(TAG_RESOURCE), _labels(pool)],
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, message=f"{reason} {seconds:.0f} s after it was taken."
            )
        ],
    )


def _run_once_more() -> AutomationCore:
    """In place: the same flow run, whose second attempt has the run count 2.

    When the run is still Crashed after a while, and nobody has done anything about it; whatever leads away from there
    has an event with the run count 1. Not before it ran at all (run count 0): what can not start would be tried
    for ever.
    """
    return AutomationCore(
        name="chunk-grpo: run a lost run once more",
        description="A run that crashed on its first attempt is scheduled again; a failed one is not.",
        trigger=EventTrigger(
            after={"prefect.flow-run.Crashed"},
            expect={"prefect.flow-run.*"},
            match=_labels(_FLOW_RUN | {"prefect.run-count": "1"}),
            match_related=[_labels(TAG_RESOURCE), _labels(_FLOW_OURS), _labels(_DEPLOYMENT)],
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=AGAIN_AFTER_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.SCHEDULED, message="Its process or machine was lost: run once more."
            )
        ],
    )


def _tell_ended(block: UUID) -> list[AutomationCore]:
    """A first crash is not told: the run starts once more."""
    message = (
        '"Flow run " ~ flow_run.name ~ ": " ~ flow_run.state.name ~ ". " ~ (flow_run.state.message or "")'
    )
    failed = {"prefect.flow-run.Failed", "prefect.flow-run.TimedOut"}
    return [
        _tell("failed runs", "When a run of flow chunk-grpo fails.", failed, _FLOW_RUN, message, block),
        _tell(
            "runs that are lost for good",
            "When a run of flow chunk-grpo crashes on its second attempt, or before it began.",
            {"prefect.flow-run.Crashed"},
            _FLOW_RUN | {"prefect.run-count": "!1"},
            message,
            block,
        ),
    ]


def _tell_moved(block: UUID) -> AutomationCore:
    message = '"A score has moved. " ~ event.payload.text'
    return _tell("moved scores", f"At the event {SCORE_MOVED}.", {SCORE_MOVED}, {}, message, block)


def _tell(
    what: str, when: str, events: set[str], labels: Mapping[str, str], message: str, block: UUID
) -> AutomationCore:
    """Call the webhook with what Slack, Mattermost and others take: a JSON object with `text`.

    Once in ten minutes for each flow run, since a worker reports a crash twice.

    Args:
        what: the end of the automation's name.
        when: its description.
        events: that it waits for.
        labels: of the resource that they are about.
        message: a Jinja expression.
        block: the webhook.
    """
    ours = [_labels(TAG_RESOURCE), _labels(_FLOW_OURS)]
    return AutomationCore(
        name=f"chunk-grpo: tell of {what}",
        description=f"{when} Calls the webhook of block {WEBHOOK_BLOCK}.",
        trigger=EventTrigger(
            expect=events,
            match=_labels(labels),
            match_related=[*ours] if labels else [],
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(minutes=10),
        ),
        actions=[CallWebhook(block_document_id=block, payload=f'{{"text": {{{{ ({message}) | tojson }}}}}}')],
    )

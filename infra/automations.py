"""Automations of the Prefect server: end lost flow runs, run them once more, and send notifications.

Automations are identified by their name. Whether one is enabled is the user's choice and is kept.
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
"""Heartbeat interval of flow runs; the shortest that Prefect allows."""
LOST_AFTER_SECONDS = 120
"""Time without a heartbeat after which a flow run counts as lost."""
AGAIN_AFTER_SECONDS = 30
"""Delay before a lost flow run is run once more: a worker reports the end of one process twice, seconds apart."""
STARTED_WITHIN_SECONDS = 900
"""Time after which a flow run that a process worker took but that does not run counts as lost."""
CONTAINER_STARTED_WITHIN_SECONDS = 6 * 3600
"""The same for containers on Kubernetes and ECS. They may have to wait for a machine and pull 10 GB; without this limit
a container whose image is missing would wait for ever."""
WATCH_RUNNING = "chunk-grpo.watch.running"
WATCH_PENDING = "chunk-grpo.watch.pending"
"""Events that set-up sends for flow runs that may have been lost while the server was down: they start the timers."""

TAG = "chunk-grpo"
FLOW = "chunk-grpo"
WEBHOOK_BLOCK = "chunk-grpo-notify"

TAG_RESOURCE = {"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"}
"""Related resource of the events of our flow runs."""


_FLOW_RUN = {"prefect.resource.id": "prefect.flow-run.*"}
_FLOW_OURS = {"prefect.resource.role": "flow", "prefect.resource.name": FLOW}
_DEPLOYMENT = {"prefect.resource.role": "deployment"}
_PROCESS_POOL = {"prefect.resource.role": "work-pool", "prefect.work-pool.type": "process"}
_CONTAINER_POOL = _PROCESS_POOL | {"prefect.work-pool.type": "!process"}
_TAKEN = {f"prefect.flow-run.{state}" for state in ("Pending", "Submitting", "InfrastructurePending")}
"""Events of the states between taking a flow run and running it; each restarts the timer."""


def supervision(
    process_seconds: float = STARTED_WITHIN_SECONDS,
    container_seconds: float = CONTAINER_STARTED_WITHIN_SECONDS,
) -> list[AutomationCore]:
    """The automations for every server, with the seconds within which process or container of a flow run must start."""
    return [_crash_silent(), *_crash_never_started(process_seconds, container_seconds), _run_once_more()]


def notifications(url: SecretStr) -> list[AutomationCore]:
    """The automations that call a webhook; Prefect stores its URL encrypted in a block."""
    block = Webhook(url=url, headers=SecretDict({"Content-Type": "application/json"}))
    saved = block.save(WEBHOOK_BLOCK, overwrite=True)
    assert isinstance(saved, UUID)
    return [*_tell_ended(saved), _tell_moved(saved)]


def apply(client: SyncPrefectClient, wanted: Sequence[AutomationCore]) -> None:
    """Create missing automations and update changed ones.

    Unchanged automations are not written: writing one drops its running timers.
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
            # The server rejects an owner in an update.
            changed = AutomationCore.model_validate(new.model_dump(exclude={"owner_resource"}))
            client.update_automation(first.id, changed)


def _labels(labels: Mapping[str, str]) -> ResourceSpecification:
    return ResourceSpecification(dict(labels.items()))


def _crash_silent() -> AutomationCore:
    """Crash a run without heartbeats.

    Every event of the run stops the timer, and heartbeats start it again; each state change has an event. The server
    refuses to mark an ended run as crashed.
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
    """Crash runs that never start: the worker is lost, or passed the run to a container and does not watch it."""
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
    """Schedule the same flow run again; its second attempt has run count 2.

    This happens if the run is still Crashed after a delay: any other state change in between has an event with run
    count 1, which stops the timer. Runs that never started (run count 0) are excluded, because they would be retried
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
    """Notifications of ended runs, except a first crash, after which the run starts once more."""
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
    """Call the webhook with a JSON object with the key `text`, as Slack, Mattermost and others accept.

    It is called at most once in ten minutes per flow run, since a worker reports a crash twice. `what` ends the
    automation's name, `when` begins its description; `labels` are of the events' resource; `message` is a Jinja
    expression.
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

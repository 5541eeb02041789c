"""What each receiver is sent is what its API takes: fields, limits, keys, as its documentation says."""

from __future__ import annotations

import base64
import json
import subprocess
from datetime import datetime
from typing import Any

import pytest
from notify_cases import T0, confirmed, experiment, halted, hear, incident, line, opened
from pydantic import BaseModel, ConfigDict, Field

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import HaltState
from gpuchaos_stream.notify.book import message
from gpuchaos_stream.notify.conditions import of_experiment, of_incident
from gpuchaos_stream.notify.message import Kind, Message
from gpuchaos_stream.notify.receivers.base import Batch, Request
from gpuchaos_stream.notify.receivers.registry import kinds

SECRET = {"env": "GPUCHAOS_TEST_SECRET"}
KEY = bytes(range(32))
WHSEC = "whsec_" + base64.b64encode(KEY).decode()


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCHAOS_TEST_SECRET", WHSEC)


def made(kind: Kind, *, huge: bool = False) -> Message:
    """A message of that kind, of a halt or a notice; with `huge` everything is as long as can be."""
    if kind is Kind.NOTICE:
        condition = next(each for each in of_experiment(experiment()) if each.notice)
    elif huge:
        many = experiment(name="<&>" * 3000, owner="é" * 3000)
        condition = next(iter(of_incident(incident(), [many])))
    else:
        state = confirmed() if kind is Kind.RESOLVED else halted()
        condition = next(each for each in of_experiment(state) if each.name == "ExperimentHalted")
    return message(condition, kind, None, "https://gpuchaos.example.com/experiments/exp-1")


def request(type_: str, *messages: Message, **settings: Any) -> tuple[Request, Any]:
    receiver = kinds()[type_].model_validate({"name": "it", "type": type_, **settings})
    found = receiver.request(Batch("msg_0123", messages, {"cluster": "training"}), T0)
    return found, json.loads(found.body)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PagerDutyPayload(Strict):
    summary: str = Field(min_length=1, max_length=1024)
    source: str = Field(min_length=1)
    severity: str = Field(pattern="^(critical|error|warning|info)$")
    timestamp: str
    component: str
    group: str
    class_: str = Field(alias="class")
    custom_details: dict[str, str]


class PagerDutyEvent(Strict):
    routing_key: str
    event_action: str = Field(pattern="^(trigger|resolve)$")
    dedup_key: str = Field(min_length=1, max_length=255)
    payload: PagerDutyPayload
    client: str
    links: list[dict[str, str]]


class PagerDutyChangePayload(Strict):
    summary: str = Field(min_length=1, max_length=1024)
    source: str
    timestamp: str
    custom_details: dict[str, str]


class PagerDutyChange(Strict):
    routing_key: str
    payload: PagerDutyChangePayload
    links: list[dict[str, str]]


class OpsgenieAlert(Strict):
    message: str = Field(min_length=1, max_length=130)
    alias: str = Field(max_length=250)
    description: str = Field(max_length=15_000)
    priority: str = Field(pattern="^P[1-5]$")
    source: str
    entity: str = Field(max_length=512)
    tags: list[str] = Field(max_length=20)
    details: dict[str, str]


class V4Alert(Strict):
    status: str = Field(pattern="^(firing|resolved)$")
    labels: dict[str, str]
    annotations: dict[str, str]
    startsAt: datetime = Field(strict=False)  # noqa: N815  (Alertmanager's name)
    endsAt: datetime = Field(strict=False)  # noqa: N815
    generatorURL: str  # noqa: N815
    fingerprint: str = Field(pattern="^[0-9a-f]{16}$")


class V4(Strict):
    version: str = Field(pattern="^4$")
    groupKey: str  # noqa: N815
    truncatedAlerts: int  # noqa: N815
    status: str = Field(pattern="^(firing|resolved)$")
    receiver: str
    groupLabels: dict[str, str]  # noqa: N815
    commonLabels: dict[str, str]  # noqa: N815
    commonAnnotations: dict[str, str]  # noqa: N815
    externalURL: str  # noqa: N815
    alerts: list[V4Alert] = Field(min_length=1)


def test_every_receiver_is_found_by_its_file() -> None:
    assert list(kinds()) == ["alertmanager", "opsgenie", "pagerduty", "slack", "webhook"]


def test_pagerduty_resolves_under_the_key_that_it_was_triggered_with() -> None:
    opening, trigger = request("pagerduty", made(Kind.OPENED), routing_key=SECRET)
    _, resolve = request("pagerduty", made(Kind.RESOLVED), routing_key=SECRET)
    first, last = PagerDutyEvent.model_validate(trigger), PagerDutyEvent.model_validate(resolve)
    assert opening.url == "https://events.pagerduty.com/v2/enqueue"
    assert (first.event_action, last.event_action) == ("trigger", "resolve")
    assert first.dedup_key == last.dedup_key
    assert list(first.payload.custom_details)[:6] == [
        "Injected",
        "Broke with it",
        "Not explained",
        "Halted",
        "Undo",
        "What to do",
    ]


def test_pagerduty_is_told_of_a_start_by_a_change_event_which_pages_nobody() -> None:
    found, body = request(
        "pagerduty", made(Kind.NOTICE), routing_key=SECRET, base_url="https://events.eu.pagerduty.com"
    )
    assert found.url == "https://events.eu.pagerduty.com/v2/change/enqueue"
    assert PagerDutyChange.model_validate(body).payload.summary == "experiment stopped-rank started"


def test_pagerduty_takes_the_largest_message() -> None:
    found, body = request("pagerduty", made(Kind.OPENED, huge=True), routing_key=SECRET)
    PagerDutyEvent.model_validate(body)
    assert len(found.body) < 512 * 1024


def test_opsgenie_opens_notes_and_closes_one_alias() -> None:
    opening, alert = request("opsgenie", made(Kind.OPENED), api_key=SECRET)
    noting, _ = request("opsgenie", made(Kind.UPDATED), api_key=SECRET)
    closing, _ = request("opsgenie", made(Kind.RESOLVED), api_key=SECRET)
    alias = OpsgenieAlert.model_validate(alert).alias
    assert opening.url == "https://api.opsgenie.com/v2/alerts"
    assert noting.url == f"https://api.opsgenie.com/v2/alerts/{alias}/notes?identifierType=alias"
    assert closing.url == f"https://api.opsgenie.com/v2/alerts/{alias}/close?identifierType=alias"
    assert opening.headers["Authorization"] == f"GenieKey {WHSEC}"


def test_opsgenie_takes_the_largest_message_and_jsm_is_another_base() -> None:
    base = "https://api.atlassian.com/jsm/ops/integration"
    found, body = request("opsgenie", made(Kind.OPENED, huge=True), api_key=SECRET, base_url=base)
    OpsgenieAlert.model_validate(body)
    assert found.url == f"{base}/v2/alerts"


def slack_texts(body: Any) -> list[str]:
    assert set(body) == {"text", "blocks"}
    assert 1 <= len(body["blocks"]) <= 50
    header, *sections = body["blocks"]
    assert header["type"] == "header"
    assert header["text"]["type"] == "plain_text"
    assert 1 <= len(header["text"]["text"]) <= 150
    for section in sections:
        assert section["type"] == "section"
        assert section["text"]["type"] == "mrkdwn"
        assert 1 <= len(section["text"]["text"]) <= 3000
    return [header["text"]["text"], *(section["text"]["text"] for section in sections)]


def test_slack_shows_the_parts_in_order() -> None:
    _, body = request("slack", made(Kind.OPENED), url=SECRET)
    _, text = slack_texts(body)
    parts = ["*Injected:*", "*Broke with it:*", "*Not explained:*", "*Halted:*", "*Undo:*", "*What to do:*"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize("count", [1, 10])
def test_slack_says_of_the_largest_message_whether_it_is_undone_and_what_to_do(count: int) -> None:
    lines = tuple(line("xid_79", f"gpu/n{number:03d}/0", "far above its peers " * 20) for number in range(12))
    state = halted(HaltState.ESCALATED).model_copy(update={"charged": lines, "unexplained": lines})
    condition = next(each for each in of_experiment(state) if each.name == "ExperimentHalted")
    _, body = request("slack", *[message(condition, Kind.OPENED, None)] * count, url=SECRET)
    for text in slack_texts(body)[1:]:
        assert len(text) <= 3000
        assert "*Undo:* NOT undone" in text
        assert "*What to do:* go to" in text
        assert "gpuchaos-agent undo --all" in text


def test_the_title_of_an_unconfirmed_undo_says_so_before_it_is_cut_off() -> None:
    state = halted(HaltState.ESCALATED, reason="a rule that has much to say " * 20)
    condition = next(each for each in of_experiment(state) if each.name == "ExperimentHalted")
    _, body = request("opsgenie", message(condition, Kind.OPENED, None), api_key=SECRET)
    assert body["message"].startswith("undo NOT confirmed: ")


def test_slack_takes_ten_of_the_largest_messages_escaped() -> None:
    messages = [made(Kind.OPENED, huge=True)] * 10
    _, body = request("slack", *messages, url=SECRET)
    texts = slack_texts(body)
    assert sum(map(len, texts)) < 13_000
    for text in [*texts[1:], body["text"]]:
        bare = text.replace("&lt;", "").replace("&gt;", "").replace("&amp;", "")
        assert "&" not in bare
        assert bare.count("<") == bare.count(">") <= 1


def test_alertmanager_is_posted_whole_alerts_that_end_in_four_rounds() -> None:
    found, body = request("alertmanager", made(Kind.OPENED), url="http://am:9093/prefix/", renew="30s")
    assert found.url == "http://am:9093/prefix/api/v2/alerts"
    (alert,) = body
    assert alert["labels"]["alertname"] == "GPUChaosExperimentHalted"
    assert alert["labels"]["severity"] == "critical"
    assert datetime.fromisoformat(alert["endsAt"]).timestamp() == T0 + 120
    _, (resolved,) = request("alertmanager", made(Kind.RESOLVED), url="http://am:9093")
    assert resolved["labels"] == alert["labels"]
    assert {"summary", "description"} <= set(resolved["annotations"])
    assert datetime.fromisoformat(resolved["endsAt"]).timestamp() <= T0 + 20


def test_the_webhook_has_alertmanagers_shape() -> None:
    _, body = request("webhook", made(Kind.OPENED), made(Kind.RESOLVED), made(Kind.NOTICE), url="https://hook/")
    found = V4.model_validate(body)
    assert [alert.status for alert in found.alerts] == ["firing", "resolved", "resolved"]
    assert body["alerts"][0]["endsAt"] == "0001-01-01T00:00:00Z"
    assert found.status == "firing"
    assert found.commonLabels["cluster"] == "training"
    assert found.alerts[0].fingerprint == found.alerts[1].fingerprint


def test_openssl_agrees_with_the_webhooks_signature() -> None:
    found, _ = request("webhook", made(Kind.OPENED), url="https://hook/", signing=[SECRET])
    headers = found.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + found.body
    done = subprocess.run(
        ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{KEY.hex()}", "-binary"],
        input=signed,
        capture_output=True,
        check=True,
    )
    assert headers["webhook-signature"] == "v1," + base64.b64encode(done.stdout).decode()
    assert headers["webhook-timestamp"] == str(int(T0))
    assert "." not in headers["webhook-id"]


def test_while_a_signing_secret_is_changed_both_sign() -> None:
    found, _ = request("webhook", made(Kind.OPENED), url="https://hook/", signing=[SECRET, SECRET])
    assert len(found.headers["webhook-signature"].split()) == 2


def test_a_severity_that_rises_ends_the_alert_under_its_old_labels(tmp_path: Any) -> None:
    it = "  - {name: it, type: alertmanager, url: 'http://127.0.0.1:1/', allow_private: true}"
    with opened(tmp_path, it) as (config, queue, notifier):
        hear(notifier, queue, incident(severity=Severity.WARNING), incident(severity=Severity.CRITICAL))
        first = queue.take("it", 50, T0 + 9)
        assert first is not None
        queue.delivered(first)
        taken = queue.take("it", 50, T0 + 9)
        assert taken is not None
        old, new = json.loads(config.receivers["it"].request(taken.batch, T0 + 9).body)
    assert (old["labels"]["severity"], new["labels"]["severity"]) == ("warning", "critical")
    assert datetime.fromisoformat(old["endsAt"]).timestamp() == T0 + 9
    assert datetime.fromisoformat(new["endsAt"]).timestamp() > T0 + 9

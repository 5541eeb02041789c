"""The one way in which this project makes a Faust app; each setting with the measurement or bug behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import faust
from faust.types.auth import CredentialsT
from yarl import URL

from gpuchaos_stream.stream.bulk import install_bulk
from gpuchaos_stream.stream.producer import CrashOnSendError
from gpuchaos_stream.stream.recovery import SafeTableManager
from gpuchaos_stream.stream.settings import KafkaSettings, tls_context

#: Bytes that one fetch may bring from one partition (25 % more records a second than Faust's 1 MiB).
FETCH_BYTES: Final = 4 * 1024 * 1024

#: Batches, each of up to `FETCH_BYTES`, that wait for a slow agent before its partition is paused.
BUFFERED_BATCHES: Final = 32

SETTINGS: Final[dict[str, Any]] = {
    # exactly_once has open bugs that lose data; events carry ids and state is idempotent instead.
    "processing_guarantee": "at_least_once",
    "cython_optimizations": True,
    "broker_commit_interval": 1.0,
    "broker_request_timeout": 60.0,
    "consumer_auto_offset_reset": "earliest",
    "consumer_max_fetch_size": FETCH_BYTES,
    "producer_acks": -1,
    "producer_linger": 0.02,  # doubles table writes a second
    "producer_max_batch_size": 262_144,
    "producer_request_timeout": 60.0,
    "stream_buffer_maxsize": BUFFERED_BATCHES,
    "stream_wait_empty": True,
    # One worker has no use for standbys, and a memory store's standby reads every changelog twice.
    "table_standby_replicas": 0,
    # Topics are made beforehand with partitions and retention (`topics_admin.py`); Faust would guess them.
    "topic_allow_declare": False,
    "topic_disable_leader": True,
    "web_enabled": False,
    "autodiscover": False,
}


def make_app(
    app_id: str,
    settings: KafkaSettings,
    datadir: Path,
    *,
    store: str = "memory://",
    partitions: int = 4,
    **overrides: Any,
) -> Any:
    """A Faust app with bulk delivery and safe recovery, to which only topics, tables and agents are to be added.

    `app_id` is the consumer group; `datadir` must not be shared by two app ids or two workers. `partitions` is
    that of the changelogs, which must be that of the source topics. `overrides` are Faust settings.

    Raises:
        UserError: a certificate that cannot be loaded.
    """
    app = faust.App(
        app_id,
        broker=[URL(f"kafka://{server}") for server in settings.servers],
        broker_credentials=faust_credentials(settings),
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=settings.heartbeat_interval_s,
        datadir=str(datadir),
        store=store,
        topic_partitions=partitions,
        TableManager=SafeTableManager,
        **{**SETTINGS, **overrides},
    )
    install_bulk(app)
    app.sensors.add(CrashOnSendError(app))
    return app


def faust_credentials(settings: KafkaSettings) -> CredentialsT | None:
    """The settings' encryption and credentials in Faust's types; None for plain text."""
    context = tls_context(settings)
    if settings.uses_sasl and settings.sasl_password is not None:
        return faust.SASLCredentials(
            username=settings.sasl_username,
            password=settings.sasl_password.get_secret_value(),
            ssl_context=context,
            mechanism=settings.sasl_mechanism,
        )
    return None if context is None else faust.SSLCredentials(context)

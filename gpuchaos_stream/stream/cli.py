"""`gpuchaos topics` and `gpuchaos worker`."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import click

from gpuchaos_stream.commandline import exits, output_option
from gpuchaos_stream.output import Form, write
from gpuchaos_stream.stream.options import control_key, hush_kafka_client, kafka_options, key_ring, log_level_option
from gpuchaos_stream.stream.settings import load
from gpuchaos_stream.stream.topics_admin import changelog_name, ensure_topics
from gpuchaos_stream.stream.worker import TABLE, Stage, WorkerConfig, run


@click.command()
@kafka_options
@click.option("--control-partitions", default=4, show_default=True, help="of all topics that are kept by cluster")
@click.option("--telemetry-partitions", default=8, show_default=True, help="of telemetry, which is kept by cell")
@click.option(
    "--replication",
    type=click.IntRange(min=1),
    help="copies of each partition; 3 in production  [default: 1, and those that are there may have more]",
)
@click.option("--app-id", default="gpuchaos", show_default=True, help="the workers' name, for their state's topic")
@output_option
@exits({2: "a topic that is there differs, or bad input"})
def topics(
    bootstrap_servers: str | None,
    kafka_config: Path | None,
    control_partitions: int,
    telemetry_partitions: int,
    replication: int | None,
    app_id: str,
    output: Form,
) -> None:
    """Make the topics that are missing, with their retention; complain about those that are there and differ."""
    hush_kafka_client()
    settings = load(kafka_config, bootstrap_servers=bootstrap_servers)
    created = asyncio.run(
        ensure_topics(
            settings,
            control_partitions=control_partitions,
            telemetry_partitions=telemetry_partitions,
            replication=replication,
            changelogs=[changelog_name(app_id, TABLE)],
        )
    )
    if output != "table":
        write(({"topic": name, "made": True} for name in created), output)
        return
    for name in created:
        click.echo(name)
    click.echo(f"{len(created)} topics made" if created else "all topics were there")


@click.command()
@kafka_options
@click.option("--key", type=click.Path(path_type=Path), required=True, help="the control plane's private key")
@click.option("--keyring", type=click.Path(path_type=Path), required=True, help="public keys that are believed")
@click.option(
    "--rules", type=click.Path(path_type=Path), multiple=True, help="rule files or folders  [default: shipped]"
)
@click.option("--data-dir", type=click.Path(path_type=Path), default=Path("data"), show_default=True)
@click.option("--app-id", default="gpuchaos", show_default=True, help="workers of one name share the work")
@click.option("--status-port", default=0, show_default=True, help="/metrics, /healthz, /readyz; 0: a free port")
@click.option("--status-host", default="127.0.0.1", show_default=True)
@click.option(
    "--stage",
    type=click.Choice([stage.value for stage in Stage]),
    default=Stage.ALL.value,
    show_default=True,
    help="detect alone scales with telemetry, control alone with clusters",
)
@click.option("--dry-run", is_flag=True, help="decide and publish, but halt nothing")
@click.option(
    "--node",
    envvar="GPUCHAOS_NODE",
    show_envvar=True,
    default=lambda: socket.gethostname().split(".")[0],
    help="the node it runs on, as that node's agent calls it: not a target unless forced  [default: this host's name]",
)
@log_level_option
@exits({0: "ended by SIGTERM or Ctrl-C", 70: "committed offsets stood still under lag: a supervisor starts it again"})
def worker(
    bootstrap_servers: str | None,
    kafka_config: Path | None,
    key: Path,
    keyring: Path,
    rules: tuple[Path, ...],
    data_dir: Path,
    app_id: str,
    status_port: int,
    status_host: str,
    stage: str,
    dry_run: bool,
    node: str,
    log_level: str,
) -> None:
    """Detect, attribute, time and halt. Start as many as there is work; they share it."""
    ring = key_ring(keyring)
    run(
        WorkerConfig(
            settings=load(kafka_config, bootstrap_servers=bootstrap_servers),
            signer=control_key(key, ring, keyring),
            ring=ring,
            rules=rules,
            data_dir=data_dir,
            app_id=app_id,
            status_host=status_host,
            status_port=status_port,
            stage=Stage(stage),
            dry_run=dry_run,
            node=node,
            log_level=log_level,
        )
    )

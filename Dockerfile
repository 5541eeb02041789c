# Two images from one file. `worker` is the command `gpuchaos` (workers, page, notifications, schedule, simulated
# cluster); `agent` is `gpuchaos-agent`, without Faust, NumPy and click.
#
#   docker build --target worker --tag gpuchaos-stream/worker:0.1.0 .
#   docker build --target agent --tag gpuchaos-stream/agent:0.1.0 .
#
# Every Python package comes from a part of requirements/lock.txt, by version and hash.
ARG PYTHON=python:3.12.11-slim-bookworm

FROM ${PYTHON} AS wheel
WORKDIR /src
COPY requirements/build.txt requirements/
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY rules rules
COPY gpuchaos_stream gpuchaos_stream
COPY agents agents
RUN pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir /wheels .

# The compiler stays here: some packages have no wheel for every platform.
FROM ${PYTHON} AS packages
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/gpuchaos
COPY requirements/worker.txt requirements/agent.txt /requirements/

FROM packages AS worker-packages
RUN /opt/gpuchaos/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
    -r /requirements/worker.txt
COPY --from=wheel /wheels /wheels
RUN /opt/gpuchaos/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps /wheels/*.whl \
 && /opt/gpuchaos/bin/pip uninstall --yes --quiet pip

FROM packages AS agent-packages
RUN /opt/gpuchaos/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
    -r /requirements/agent.txt
COPY --from=wheel /wheels /wheels
RUN /opt/gpuchaos/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps /wheels/*.whl \
 && /opt/gpuchaos/bin/pip uninstall --yes --quiet pip

FROM ${PYTHON} AS worker
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="GPUChaos Stream" \
      org.opencontainers.image.description="Chaos experiments on GPU clusters: worker, live page, notifications" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Volumes get the owner of the folder that they are first mounted on.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/gpuchaos --shell /usr/sbin/nologin gpuchaos \
 && install -d -o gpuchaos -g gpuchaos /var/lib/gpuchaos /var/lib/gpuchaos/worker /var/lib/gpuchaos/notify \
    /keys /keys/ring /keys/control /keys/operator /keys/grafana
COPY --from=worker-packages /opt/gpuchaos /opt/gpuchaos
ENV PATH=/opt/gpuchaos/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    GPUCHAOS_HEALTH=http://127.0.0.1:9471/readyz
WORKDIR /var/lib/gpuchaos
USER 10001:10001
EXPOSE 8080 9471 9472
# Of a worker with --status-port 9471; other commands name their own address, or switch it off.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(os.environ['GPUCHAOS_HEALTH'], timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpuchaos"]
CMD ["--help"]

FROM ${PYTHON} AS agent
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="GPUChaos Stream agent" \
      org.opencontainers.image.description="Reads a node of a GPU cluster, injects faults on it and takes them back" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# What the faults drive. One whose tool is not here is refused, with the tool's name. systemd is for journalctl: in a
# container the kernel log is read from the journal.
RUN apt-get update \
 && apt-get install -y --no-install-recommends dmsetup ethtool infiniband-diags ipmitool iproute2 nftables systemd \
 && rm -rf /var/lib/apt/lists/*
COPY --from=agent-packages /opt/gpuchaos /opt/gpuchaos
ENV PATH=/opt/gpuchaos/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    GPUCHAOS_HEALTH=http://127.0.0.1:9470/healthz
WORKDIR /
# Root, for other users' processes and the kernel's log; which capabilities of it, is said where it is started.
USER 0:0
VOLUME /var/lib/gpuchaos-agent
EXPOSE 9470
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(os.environ['GPUCHAOS_HEALTH'], timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["gpuchaos-agent"]

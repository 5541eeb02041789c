"""`service-latency`: delay, jitter, loss or a narrow path for the traffic of one service, and of no other.

By netem where the kernel has it, else by a proxy for TCP; which of the two is part of the evidence. Packets of RDMA
pass both by.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpuchaos_agent.inject import service_latency_netem as netem
from gpuchaos_agent.inject import service_latency_proxy as proxy
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.service_latency_params import (
    Service,
    ServiceLatencyParams,
    resolved,
    why_no_netem,
    why_no_proxy,
)
from gpuchaos_agent.inject.storage_mode import word
from gpuchaos_agent.inject.storage_unreachable import broker_among
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_stream.events.base import Authored

_NETEM = "netem"
_PROXY = "proxy"


class ServiceLatency:
    """One service's path is slow; see the module."""

    name = "service-latency"
    layer = "one service's path: its packets on the way out (netem), or its TCP streams (proxy); RDMA passes it by"
    certifies = ("latency-tolerance",)
    not_certified = ("node-isolation", "rdma-failure", "collective-failure", "storage-failover")
    params: type[Authored] = ServiceLatencyParams

    def __init__(self, env: Env) -> None:
        self._env = env

    def unavailable(self) -> str | None:
        """Needs root: queues, rules and a proxy that is not redirected itself."""
        if os.geteuid() != 0:
            return "queues and redirects are made by root alone"
        no_proxy = proxy.why_not(ServiceLatencyParams(service="localhost:1", delay="1ms"))
        if no_proxy is None:
            return None
        no_netem = netem.why_not(ServiceLatencyParams(service="localhost:1", delay="1ms"), Service((), 1))
        return f"neither way is open here: {no_netem}; {no_proxy}" if no_netem else None

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses what neither method can do here, a service that cannot be resolved, and the agent's own brokers."""
        if target != f"node/{self._env.node}":
            return f"the target must be node/{self._env.node}, not {target}"
        asked = ServiceLatencyParams.model_validate(params)
        try:
            service = resolved(asked)
        except InjectError as error:
            return str(error)
        broker = None if asked.include_brokers else broker_among((service.selector(),), self._env)
        if broker is not None:
            return f"{broker} is the agent's own way to Kafka; include_brokers: true would slow it down as well"
        return self.unavailable() or self._method(asked, service)[1]

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:  # noqa: ARG002
        """The method, the addresses that the name has now, and how fast the service is."""
        asked = ServiceLatencyParams.model_validate(params)
        service = resolved(asked)
        method, reason = self._method(asked, service)
        if reason is not None:
            raise InjectError(reason)
        payload: Payload = {"method": method, "addresses": ",".join(service.addresses), "port": service.port}
        if method == _NETEM:
            return payload | netem.plan(asked, service, fault_id)
        return payload | proxy.plan(self._env, asked, service, fault_id)

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:  # noqa: ARG002
        """The path to the service."""
        return frozenset({f"path:{ServiceLatencyParams.model_validate(params).service}"})

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """Tc's, or the proxy and its rules."""
        return netem.commands(entry) if self._by_netem(entry) else proxy.commands(entry)

    def inject(self, entry: JournalEntry) -> None:
        """By the method that was planned."""
        if self._by_netem(entry):
            netem.inject(self._env, entry)
        else:
            proxy.inject(self._env, _asked(entry), entry)

    def evidence(self, entry: JournalEntry) -> Evidence:
        """A round trip that takes longer, and traffic that goes through the method."""
        if self._by_netem(entry):
            return netem.evidence(_asked(entry), entry)
        return proxy.evidence(_asked(entry), entry)

    def undo(self, entry: JournalEntry) -> None:
        """Queues removed, or the proxy ended and with it the redirect."""
        if self._by_netem(entry):
            netem.undo(self._env, entry)
        else:
            proxy.undo(self._env, entry)

    def verify(self, entry: JournalEntry) -> bool:
        """Nothing of it is left."""
        return netem.verify(self._env, entry) if self._by_netem(entry) else proxy.verify(self._env, entry)

    def _by_netem(self, entry: JournalEntry) -> bool:
        return word(entry, "method") == _NETEM

    def _method(self, asked: ServiceLatencyParams, service: Service) -> tuple[str, str | None]:
        """The method, and why not even that one."""
        no_netem = why_no_netem(asked) or (netem.why_not(asked, service) if asked.method != _PROXY else None)
        if asked.method == _NETEM or (asked.method == "auto" and no_netem is None):
            return _NETEM, no_netem
        no_proxy = why_no_proxy(asked) or proxy.why_not(asked, service)
        if no_proxy is None or asked.method == _PROXY:
            return _PROXY, no_proxy
        return _PROXY, f"{no_netem}; {no_proxy}"


def _asked(entry: JournalEntry) -> ServiceLatencyParams:
    return ServiceLatencyParams.model_validate(entry.params)


STRATEGY = ServiceLatency

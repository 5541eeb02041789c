"""CPUs that are too hot: all of a package at once, one event."""

from __future__ import annotations

import pytest
from kernel_words_kit import events, fault, one, said, without_example

from gpuchaos_agent.words import thermal
from gpuchaos_stream.events.base import Severity

OLD = "CPU{}: Package temperature above threshold, cpu clock throttled (total events = 12)"
NEW = "mce: CPU{}: Core temperature is above threshold, cpu clock is throttled (total events = 12)"
COOL = "mce: CPU7: Core temperature/speed normal"


def test_a_hot_package_is_one_event_however_many_cpus_say_it() -> None:
    (event,) = events([(0.0, OLD.format(cpu)) for cpu in range(8)])
    assert (event.finding.fault, event.finding.severity, event.count) == ("cpu_over_temperature", Severity.WARNING, 8)


def test_old_and_new_wording_name_the_cpu() -> None:
    assert fault(OLD.format(5)).evidence["cpu"] == fault(NEW.format(5)).evidence["cpu"] == 5


def test_a_cpu_that_has_cooled_is_noted_and_says_nothing_alone() -> None:
    assert one([(0.0, NEW.format(7)), (4.0, COOL)]).evidence["cooled"] is True
    assert events([COOL]) == []


def test_a_critical_temperature_is_critical() -> None:
    finding = fault("thermal thermal_zone3: x86_pkg_temp: critical temperature reached, shutting down")
    assert (finding.severity, finding.evidence["zone"]) == (Severity.CRITICAL, "thermal_zone3")


@pytest.mark.parametrize(
    "text",
    [
        "CPU0: Thermal monitoring enabled (TM1)",
        "thermal_sys: Registered thermal governor 'step_wise'",
        "ACPI: thermal: Thermal Zone [THM0] (35 C)",
        "sensors: CPU5: Package temperature above threshold, cpu clock throttled (total events = 1)",
    ],
)
def test_sensors_and_banners_say_nothing(text: str) -> None:
    assert said(text) is None


def test_every_wording_of_heat_has_an_example() -> None:
    critical = "thermal thermal_zone3: critical temperature reached(105 C), shutting down"
    assert without_example(thermal.RULES, [OLD.format(1), COOL, critical]) == []

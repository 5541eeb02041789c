"""`memory-corruption` with `plane: machine-check` on a kernel that has mce-inject: the kernel itself speaks."""

from __future__ import annotations

import re
from typing import Final

import pytest
from guest_facts import Facts
from lab.guest import Guest, Result

FAULT: Final = "memory-corruption node/n1 --node n1 --state-dir /run/mce-state --param plane=machine-check"


def agent(guest: Guest, arguments: str) -> Result:
    """With all the time that a busy host may need."""
    return guest.agent(arguments, timeout=180)


@pytest.mark.timeout(900)
def test_machine_check_is_decoded_by_the_kernel_marked_and_cleared_and_the_agents_eyes_see_it(
    guest: Guest, seen: Facts
) -> None:
    since = float(guest.check("date +%s.%N"))
    done = agent(guest, f"inject {FAULT} --param bank=8 --seconds 0.5")
    assert done.rc == 0, done.out
    assert "Hardware Error" in done.out
    assert re.search(r"ADDR 1[0-9a-f]{9} ", done.out)
    assert "verified gone" in done.out
    told = seen.wait("mce_corrected", after=since)
    assert told.origin == "kernel", "it is the kernel's own word, and no process's"
    log = guest.dmesg().splitlines()
    ours = [line for line in log if "gpuchaos-injected=by-hand-" in line and "machine check" in line]
    begun, cleared = (line.partition(";")[2] for line in ours[-2:])
    assert begun.startswith("gpuchaos: machine check injected (CPU 0, bank 8)")
    assert cleared.startswith("gpuchaos: machine check cleared (CPU 0, bank 8)")
    assert begun.rpartition("=")[2] == cleared.rpartition("=")[2]
    spoken = [at for at, line in enumerate(log) if "Machine Check: 0 Bank 8" in line]
    assert log.index(ours[-2]) < spoken[-1] < log.index(ours[-1])
    # The clearing record is a process's, and no fact.
    assert agent(guest, "undo --all --node n1 --state-dir /run/mce-state").out.strip() == "nothing to undo"


@pytest.mark.timeout(900)
def test_bank_that_the_processor_does_not_have_is_not_effective_and_undone(guest: Guest) -> None:
    done = agent(guest, f"inject {FAULT} --param bank=200 --seconds 0.5")
    assert done.rc == 1
    assert "NOT EFFECTIVE" in done.out
    assert "bank: Invalid argument" in done.out
    assert "undone, and verified gone" in done.out


@pytest.mark.timeout(900)
def test_without_the_kernels_module_it_is_refused(guest: Guest) -> None:
    refused = agent(guest, f"inject {FAULT} --sysfs /nowhere")
    assert refused.rc == 2
    assert "mce-inject" in refused.out
    assert "must be node/n1" in agent(guest, f"inject {FAULT.replace('node/n1', 'gpu/n1/0')}").out

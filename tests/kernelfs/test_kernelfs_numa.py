from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.kernelfs import numa_nodes
from gpuchaos_agent.kernelfs.alignment import Placement, farness, home, placement
from gpuchaos_agent.kernelfs.numa_nodes import Nodes


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_distances_follow_the_online_nodes_and_not_their_numbers(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "online": "2,7,40\n",
            "node2/distance": "10 31 77\n",
            "node7/distance": "31 10 78\n",
            "node40/distance": "77 78 10\n",
            "node2/cpulist": "0-1\n",
            "node7/cpulist": "2,3\n",
            "node40/cpulist": "\n",
        },
    )
    nodes = numa_nodes.read(tmp_path)
    assert nodes.online == (2, 7, 40)
    assert nodes.cpu_nodes == (2, 7)
    assert nodes.distance[2] == {2: 10, 7: 31, 40: 77}
    assert nodes.distance[40] == {2: 77, 7: 78, 40: 10}


def test_a_distance_row_as_long_as_the_possible_nodes_is_read_by_those(tmp_path: Path) -> None:
    plant(tmp_path, {"online": "3\n", "possible": "1,3\n", "node3/distance": "21 10\n"})
    assert numa_nodes.distances(tmp_path) == {3: {1: 21, 3: 10}}


@pytest.mark.parametrize("row", ["10\n", "10 20 30\n", "10 x\n", "", "N/A\n"])
def test_a_distance_row_that_fits_nothing_is_left_out(tmp_path: Path, row: str) -> None:
    plant(tmp_path, {"online": "0-1\n", "possible": "0-1\n", "node0/distance": row, "node1/distance": "20 10\n"})
    assert numa_nodes.distances(tmp_path) == {1: {0: 20, 1: 10}}


def test_memory_of_a_node_is_in_bytes_and_an_empty_node_is_none_of_unknown(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "node0/meminfo": "\nNode 0 MemTotal:       2048 kB\nNode 0 MemFree:        512 kB\n",
            "node9/meminfo": "Node 9 MemTotal:             0 kB\n",
        },
    )
    assert numa_nodes.memory(tmp_path, 0) == numa_nodes.NodeMemory(total=2097152.0, free=524288.0)
    assert numa_nodes.memory(tmp_path, 9) == numa_nodes.NodeMemory(total=0.0, free=None)
    assert numa_nodes.memory(tmp_path, 1) == numa_nodes.NodeMemory(total=None, free=None)


def test_no_tree_is_no_nodes(tmp_path: Path) -> None:
    assert numa_nodes.read(tmp_path / "none") == Nodes()


#: Two sockets of two nodes each: a neighbour is 12 away, the other socket 32 (EPYC with NPS2).
FOUR = Nodes(
    online=(0, 1, 2, 3),
    cpus={node: frozenset({2 * node, 2 * node + 1}) for node in range(4)},
    distance={a: {b: 10 if a == b else 12 if a // 2 == b // 2 else 32 for b in range(4)} for a in range(4)},
)
#: Two CPU nodes, and two GPU memory nodes: 8 belongs to 0, 9 to 1.
GRACE = Nodes(
    online=(0, 1, 8, 9),
    cpus={0: frozenset({0, 1}), 1: frozenset({2, 3})},
    distance={
        0: {0: 10, 1: 40, 8: 80, 9: 120},
        1: {0: 40, 1: 10, 8: 120, 9: 80},
        8: {0: 80, 1: 120, 8: 10, 9: 160},
        9: {0: 120, 1: 80, 8: 160, 9: 10},
    },
)


def test_a_process_wholly_beside_its_gpu_is_not_misaligned() -> None:
    assert placement(2, FOUR, allowed=(4, 5), pages={2: 1e9}) == Placement(0.0, 0.0, 0.0)


def test_a_process_wholly_on_the_farthest_node_is_misaligned_by_one() -> None:
    assert placement(0, FOUR, allowed=(4, 7), pages={2: 1e9, 3: 1.0}) == Placement(1.0, 1.0, 1.0)


def test_a_neighbour_on_the_same_socket_counts_less_than_the_other_socket() -> None:
    near = placement(0, FOUR, allowed=(2, 3), pages=None)
    assert near.misaligned == pytest.approx(2 / 22)
    assert near.cpu_far == 1.0


def test_the_worse_of_cpus_and_memory_is_the_number() -> None:
    assert placement(0, FOUR, allowed=(0,), pages={0: 25.0, 3: 75.0}).misaligned == 0.75
    assert placement(0, FOUR, allowed=(0, 6), pages={0: 25.0}).misaligned == 0.5


def test_what_is_unknown_leaves_the_other_half() -> None:
    assert placement(0, FOUR, allowed=None, pages={3: 1.0}) == Placement(1.0, None, 1.0)
    assert placement(0, FOUR, allowed=(6,), pages=None) == Placement(1.0, 1.0, None)
    assert placement(0, FOUR, allowed=(), pages={}) == Placement()


def test_cpus_that_the_machine_lacks_do_not_count() -> None:
    assert placement(0, FOUR, allowed=range(1024), pages=None).cpu_far == 0.75


@pytest.mark.parametrize("node", [None, 7, -1])
def test_a_gpu_whose_node_is_unknown_says_nothing(node: int | None) -> None:
    assert placement(node, FOUR, allowed=(0,), pages={0: 1.0}) == Placement()


def test_on_a_machine_with_cpus_on_one_node_nothing_can_lie_wrong() -> None:
    one = Nodes(online=(0, 1), cpus={0: frozenset({0})}, distance={})
    assert placement(1, one, allowed=(0,), pages={1: 1.0}) == Placement()
    assert home(1, one) == 0


def test_a_gpu_with_a_memory_node_of_its_own_is_at_home_at_the_nearest_cpus() -> None:
    assert (home(8, GRACE), home(9, GRACE)) == (0, 1)
    assert placement(9, GRACE, allowed=(2, 3), pages={9: 5.0, 1: 5.0}) == Placement(0.0, 0.0, 0.0)
    assert placement(9, GRACE, allowed=(0,), pages={8: 1.0}) == Placement(1.0, 1.0, 1.0)


def test_a_gpu_equally_near_to_two_sockets_is_on_none() -> None:
    even = Nodes(
        online=(0, 8, 250),
        cpus={0: frozenset({0}), 8: frozenset({4})},
        distance={a: {b: 10 if a == b else 80 for b in (0, 8, 250)} for a in (0, 8, 250)},
    )
    assert home(250, even) is None


def test_the_way_back_decides_where_the_way_there_does_not() -> None:
    nodes = Nodes(
        online=(0, 1, 5),
        cpus={0: frozenset({0}), 1: frozenset({1})},
        distance={0: {0: 10, 1: 20, 5: 80}, 1: {0: 20, 1: 10, 5: 40}, 5: {0: 255, 1: 255, 5: 10}},
    )
    assert home(5, nodes) == 1


@pytest.mark.parametrize("distance", [{}, {0: {0: 10, 1: 10}, 1: {0: 10, 1: 10}}, {0: {0: 10}}, {0: {0: 20, 1: 10}}])
def test_without_distances_every_other_node_is_far(distance: dict[int, dict[int, int]]) -> None:
    nodes = Nodes(online=(0, 1), cpus={0: frozenset({0}), 1: frozenset({1})}, distance=distance)
    assert farness(0, nodes) == {0: 0.0, 1: 1.0}


machines = st.lists(st.integers(0, 300), min_size=2, max_size=8, unique=True).flatmap(
    lambda ids: st.tuples(
        st.just(tuple(sorted(ids))),
        st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)),
        st.lists(st.integers(10, 255), min_size=len(ids) ** 2, max_size=len(ids) ** 2),
    )
)


@given(machines, st.integers(0, 7), st.sets(st.integers(0, 40)), st.lists(st.integers(0, 2**40), max_size=8))
def test_the_number_is_a_share_and_at_least_that_of_either_half(
    machine: tuple[tuple[int, ...], list[bool], list[int]], at: int, allowed: set[int], sizes: list[int]
) -> None:
    ids, with_cpus, far = machine
    cpus = {node: frozenset({3 * n, 3 * n + 1}) for n, node in enumerate(ids) if with_cpus[n]}
    distance = {a: {b: far[len(ids) * n + m] for m, b in enumerate(ids)} for n, a in enumerate(ids)}
    nodes, gpu = Nodes(ids, cpus, distance), ids[at % len(ids)]
    pages = {node: float(size) for node, size in zip(ids, sizes, strict=False)}
    found = placement(gpu, nodes, allowed=allowed, pages=pages)
    for value in (found.misaligned, found.cpu_far, found.memory_far):
        assert value is None or 0.0 <= value <= 1.0
    halves = [
        placement(gpu, nodes, allowed=allowed, pages=None).misaligned,
        placement(gpu, nodes, allowed=None, pages=pages).misaligned,
    ]
    assert found.misaligned == max((half for half in halves if half is not None), default=None)
    if found.cpu_far == 0.0 and found.memory_far == 0.0:
        assert found.misaligned == 0.0

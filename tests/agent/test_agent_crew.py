from __future__ import annotations

import threading

from gpuchaos_agent.crew import Crew


def wait(event: threading.Event) -> None:
    event.wait(30)


def test_work_is_done_in_order_and_in_one_thread_while_nothing_hangs() -> None:
    crew = Crew("t", patience_s=30)
    done: list[int] = []
    threads: set[int] = set()

    def piece(number: int) -> None:
        done.append(number)
        threads.add(threading.get_ident())

    for start in (0, 10):
        crew.run([lambda n=n: piece(n) for n in range(start, start + 10)], 30)  # type: ignore[misc]
    crew.close()
    assert done == list(range(20))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_what_hangs_holds_up_nothing_behind_it_and_its_thread_is_of_use_again() -> None:
    crew, go, back = Crew("t", patience_s=0.01), threading.Event(), threading.Event()
    threads: list[int] = []

    def hang() -> None:
        threads.append(threading.get_ident())
        go.wait(30)
        back.set()

    def pass_by(reached: threading.Event) -> None:
        threads.append(threading.get_ident())
        reached.set()

    reached = threading.Event()
    crew.run([hang, lambda: pass_by(reached)], 30)
    assert reached.wait(30)
    assert len(set(threads)) == 2
    go.set()
    assert back.wait(30)
    for _ in range(3):
        again = threading.Event()
        crew.run([lambda e=again: pass_by(e)], 30)  # type: ignore[misc]
        assert again.wait(30)
    crew.close()
    assert len(set(threads)) == 2


def test_several_that_hang_hold_up_nobody() -> None:
    crew, go, reached = Crew("t", patience_s=0.01), threading.Event(), threading.Event()
    crew.run([*[lambda: wait(go)] * 5, reached.set], 30)
    assert reached.wait(30)
    go.set()
    crew.close()


def test_no_longer_is_waited_than_told_and_what_is_left_is_done_later() -> None:
    crew, go, reached = Crew("t", patience_s=30), threading.Event(), threading.Event()
    crew.run([lambda: wait(go), reached.set], 0.01)
    assert not reached.is_set()
    go.set()
    assert reached.wait(30)
    crew.close()


def test_two_callers_get_each_their_work_done() -> None:
    crew = Crew("t", patience_s=30)
    done: list[int] = []

    def call(number: int) -> None:
        for _ in range(100):
            crew.run([lambda: done.append(number)], 30)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    crew.close()
    assert sorted(done) == [0] * 100 + [1] * 100


def test_nothing_to_do_starts_no_thread() -> None:
    before = threading.active_count()
    Crew("t").run([], 30)
    assert threading.active_count() == before

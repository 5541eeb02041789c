from __future__ import annotations

import pytest
from app_words_kit import one, said


@pytest.mark.parametrize(
    ("text", "fault", "server"),
    [
        ("rpc error: code = Unavailable desc = etcdserver: no leader", "db_unreachable", ""),
        ("Error: etcdserver: request timed out, possibly due to previous leader failure", "db_unreachable", ""),
        ("rpc error: code = Unavailable desc = etcdserver: leader changed", "db_unreachable", ""),
        ("Error: etcdserver: mvcc: database space exceeded", "db_write_refused", ""),
        (
            '{"level":"warn","logger":"etcd-client","msg":"retrying of unary invoker failed","target":"etcd-endpoints://0xc0/10.8.0.8:2379"}',
            "none",
            "",
        ),
        ("dial tcp 10.8.0.8:2379: connect: connection refused", "db_unreachable", "10.8.0.8:2379"),
        ('{"level":"warn","msg":"apply request took too long","took":"210ms"}', "none", ""),
        ('{"level":"warn","msg":"rejected connection","remote-addr":"10.8.0.7:1","error":"EOF"}', "none", ""),
    ],
)
def test_clients_and_members_are_read(text: str, fault: str, server: str) -> None:
    if fault == "none":
        assert said(text) == "none"
        return
    found = one(text)
    assert (found.fault, found.device) == (fault, server)

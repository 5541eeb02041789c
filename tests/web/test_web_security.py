"""What a stranger may not: act without a token, act from another site, read under another name, or break anything."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from web_kit import CLUSTER, TOKEN, WHO, Running, running, synthetic_board, write_tokens

from gpuchaos_dashboards.queries import choices, names
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.observe.metrics import DEADLETTERS
from gpuchaos_stream.web.guard import HEADERS, MOST_BYTES, POLICY, allowed_hosts, name_of
from gpuchaos_stream.web.links import links, of_cluster
from gpuchaos_stream.web.problems import MEDIA
from gpuchaos_stream.web.tokens import Failures, Tokens, read

ROOT = Path(__file__).resolve().parents[2]
STOP = "/experiments/rdma-link-down-1a2b/stop"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
REASON = {"reason": "a try"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    tokens = write_tokens(tmp_path_factory.mktemp("tokens"))
    with running(synthetic_board(8, 2), token_file=tokens) as found:
        yield found


@pytest.fixture
def server(shared: Running) -> Running:
    shared.hands.calls.clear()
    site = shared.app.state.site
    site.failures = Failures()
    return shared


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=20) as found:
        yield found


# -- who may act -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [STOP, "/breaker/trip", "/breaker/reset"])
@pytest.mark.parametrize(
    "header",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {WHO}:{TOKEN}"},
        {"Authorization": b"Bearer \xff\xfe" + TOKEN.encode()},
        {"Cookie": f"token={TOKEN}"},
    ],
)
def test_nothing_is_done_without_a_token_of_the_file(
    server: Running, client: httpx.Client, path: str, header: dict[str, str | bytes]
) -> None:
    answer = client.post(server.api + path, json=REASON, headers=header)
    assert (answer.status_code, answer.headers["content-type"]) == (401, MEDIA)
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert server.hands.calls == []


def test_a_token_in_the_address_is_none(server: Running, client: httpx.Client) -> None:
    assert client.post(f"{server.api}{STOP}?token={TOKEN}&access_token={TOKEN}", json=REASON).status_code == 401


def test_a_server_without_a_token_file_is_read_only_and_says_so(client: httpx.Client) -> None:
    with running(synthetic_board(8, 2)) as server:
        assert client.get(server.api).json()["read_only"] is True
        answer = client.post(server.api + STOP, json=REASON, headers=BEARER)
        assert (answer.status_code, answer.json()["fix"]) == (
            403,
            "start it with --token-file and an operator's --key",
        )


def test_many_wrong_tokens_are_slowed_down_and_never_lock_out_the_right_one(
    server: Running, client: httpx.Client
) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    codes = [client.post(server.api + STOP, json=REASON, headers=wrong).status_code for _ in range(12)]
    assert codes == [401] * 10 + [429] * 2
    assert int(client.post(server.api + STOP, json=REASON, headers=wrong).headers["retry-after"]) >= 1
    assert client.post(server.api + STOP, json=REASON, headers=BEARER).status_code == 202


def test_wrong_tokens_are_counted_by_address_for_a_minute_and_in_bounded_memory() -> None:
    failures = Failures(most=2)
    assert [failures.add("a", now) for now in (0.0, 1.0)] == [None, None]
    assert failures.add("a", 2.0) == 58.0
    assert failures.add("b", 2.0) is None
    assert failures.add("a", 62.5) is None
    for number in range(5000):
        failures.add(f"address-{number}", 63.0)
    assert len(failures._failed) == 1024


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[broken"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 202),
    ],
)
def test_another_site_may_not_act_even_with_a_token(
    server: Running, client: httpx.Client, headers: dict[str, str], status: int
) -> None:
    answer = client.post(server.api + STOP, json=REASON, headers=BEARER | headers)
    assert answer.status_code == status
    assert len(server.hands.calls) == (status == 202)


def test_the_page_itself_may_act(server: Running, client: httpx.Client) -> None:
    answer = client.post(server.api + STOP, json=REASON, headers=BEARER | {"Origin": server.url})
    assert answer.status_code == 202


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_a_body_that_a_form_could_send_is_refused(server: Running, client: httpx.Client, kind: str) -> None:
    answer = client.post(server.api + STOP, content=json.dumps(REASON), headers=BEARER | {"Content-Type": kind})
    assert (answer.status_code, server.hands.calls) == (415, [])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"reason": ""},
        {"reason": " \n\t "},
        {"reason": "x" * 401},
        {"reason": 7},
        {"reason": None},
        {"reason": "x", "cluster": "other"},
        [],
        "x",
    ],
)
def test_an_order_without_a_proper_reason_is_refused_with_its_field(
    server: Running, client: httpx.Client, body: object
) -> None:
    answer = client.post(server.api + STOP, json=body, headers=BEARER)
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"]
    assert server.hands.calls == []


def test_a_body_that_is_too_large_is_refused_before_it_is_read_whole(server: Running, client: httpx.Client) -> None:
    large = b'{"reason": "' + b"x" * MOST_BYTES + b'"}'
    kind = {"Content-Type": "application/json"}
    assert client.post(server.api + STOP, content=large, headers=BEARER | kind).status_code == 413
    chunks = iter([large[:9000], large[9000:]])
    assert client.post(server.api + STOP, content=chunks, headers=BEARER | kind).status_code == 413
    assert server.hands.calls == []


# -- the token file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "where", "said"),
    [
        ([""], "tokens", "has no token"),
        (["# a comment"], "tokens", "has no token"),
        (["no colon here at all, is there"], "tokens:1", "is not name:token"),
        (["a b:0123456789012345678901"], "tokens:1", "is not name:token"),
        (["# x", "me:short"], "tokens:2", "shorter than 20"),
        (["me:0123456789 0123456789"], "tokens:1", "without spaces"),
        (["me:0123456789012345678901", "you:0123456789012345678901"], "tokens:2", "same token as me"),
    ],
)
def test_a_wrong_token_file_is_refused_with_its_line(tmp_path: Path, lines: list[str], where: str, said: str) -> None:
    path = write_tokens(tmp_path, *lines)
    with pytest.raises(UserError) as error:
        read(path)
    assert error.value.where.endswith(where)
    assert said in str(error.value)
    assert all(line.partition(":")[2][:12] not in str(error.value) for line in lines if len(line) > 30)


def test_a_token_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="no UTF-8"):
        read(tmp_path / "binary")


def test_a_changed_token_file_counts_at_once_and_a_broken_one_leaves_the_old(tmp_path: Path) -> None:
    path = write_tokens(tmp_path)
    tokens = Tokens(path)
    assert tokens.name(TOKEN) == WHO
    stamp = path.stat().st_mtime_ns
    path.write_text("other:abcdefghijklmnopqrstuvwxyz\n")
    os.utime(path, ns=(stamp + 1, stamp + 1))
    assert (tokens.name(TOKEN), tokens.name("abcdefghijklmnopqrstuvwxyz")) == (None, "other")
    path.write_text("broken\n")
    assert tokens.name("abcdefghijklmnopqrstuvwxyz") == "other"
    path.unlink()
    assert tokens.name("abcdefghijklmnopqrstuvwxyz") == "other"
    path.write_text("# nobody for now\n")
    assert tokens.name("abcdefghijklmnopqrstuvwxyz") is None, "its line was taken out"
    path.write_text(f"{WHO}:{TOKEN}\n")
    assert tokens.name(TOKEN) == WHO


# -- every answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", None),
        ("/api/v1/clusters", 200),
        (f"/api/v1/clusters/{CLUSTER}", 200),
        ("/api/v1/clusters/none", 404),
        ("/api/v1/nothing", 404),
        ("/nothing", 404),
        ("/healthz", 200),
        ("/metrics", 200),
        ("/api/v1/openapi.json", 200),
        (f"/api/v1/clusters/{CLUSTER}/incidents?limit=x", 422),
    ],
)
def test_every_answer_carries_the_headers_that_fence_the_page(
    server: Running, client: httpx.Client, path: str, status: int | None
) -> None:
    answer = client.get(server.url + path)
    assert status in (None, answer.status_code)
    for name, value in HEADERS:
        assert answer.headers.get_list(name) == [value]
    assert "unsafe" not in POLICY
    assert answer.headers["cache-control"] in {"no-store", "no-cache"}
    assert "server" not in answer.headers or "version" not in answer.headers["server"]


def test_the_stream_carries_them_too(server: Running, client: httpx.Client) -> None:
    with client.stream("GET", server.api + "/events") as answer:
        assert answer.headers["content-security-policy"] == POLICY
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[::2]:80", "a:b:c"]
)
def test_a_loopback_server_does_not_answer_under_another_name(server: Running, client: httpx.Client, host: str) -> None:
    answer = client.get(server.api, headers={"Host": host})
    assert answer.status_code == 421
    assert "nodes" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8080"])
def test_a_loopback_server_answers_under_this_machines_names(server: Running, client: httpx.Client, host: str) -> None:
    assert client.get(server.api, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_probes_and_prometheus_ask_by_address(server: Running, client: httpx.Client, path: str) -> None:
    assert client.get(server.url + path, headers={"Host": "10.1.2.3:8080"}).status_code == 200


def test_elsewhere_any_name_will_do_unless_names_are_given() -> None:
    assert allowed_hosts("0.0.0.0") is None  # noqa: S104  (what a container listens on)
    assert "gpuchaos.example" in (allowed_hosts("0.0.0.0", ["GPUchaos.example"]) or ())  # noqa: S104
    assert "gpuchaos.example" in (allowed_hosts("127.0.0.1", ["gpuchaos.example"]) or ())
    assert [name_of(host) for host in ("A:1", "[::1]:8", "::1", "a")] == ["a", "::1", "::1", "a"]


def test_a_method_that_is_not_there_is_refused_in_words(server: Running, client: httpx.Client) -> None:
    for method in ("DELETE", "PUT", "OPTIONS", "TRACE"):
        answer = client.request(method, server.api + "/breaker")
        assert (answer.status_code, answer.headers["content-type"]) == (405, MEDIA), method


@pytest.mark.parametrize(
    "path", ["/..%2f..%2fapp.py", "/%2e%2e/app.py", "/..//..//..//etc/passwd", "/static/../app.py"]
)
def test_no_file_beside_the_page_is_served(server: Running, client: httpx.Client, path: str) -> None:
    answer = client.get(server.url + path)
    assert answer.status_code == 404
    assert "import" not in answer.text


_junk = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(_junk, st.sampled_from([CLUSTER, "experiments", "nodes", "breaker", "trip", "events2"])), max_size=4
    ),
    st.one_of(st.none(), st.binary(max_size=200), st.dictionaries(_junk, _junk, max_size=3).map(json.dumps)),
    st.dictionaries(st.sampled_from(["limit", "status", "open", "x"]), _junk, max_size=2),
)
def test_nothing_that_is_sent_makes_it_fail(
    server: Running, client: httpx.Client, parts: list[str], body: bytes | str | None, query: dict[str, str]
) -> None:
    path = "/api/v1/clusters/" + "/".join(quote(part, safe="") for part in parts)
    method = "GET" if body is None else "POST"
    headers = {**BEARER, "Content-Type": "application/json"} if body is not None else {}
    answer = client.request(method, server.url + path, params=query, content=body, headers=headers)
    assert answer.status_code < 500, (path, answer.text)
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == MEDIA
        assert answer.json()["status"] == answer.status_code


def test_what_a_caller_sends_never_becomes_a_series(server: Running, client: httpx.Client) -> None:
    client.get(server.url + "/api/v1/never-heard-of")
    client.get(server.url + "/never-heard-of")
    client.get(f"{server.url}/api/v1/clusters/never-heard-of")
    page = client.get(server.url + "/metrics").text
    assert "never-heard-of" not in page
    assert 'gpuchaos_serve_requests_total{code="404",route="/api/v1/clusters/{cluster}"}' in page


def test_metrics_of_a_worker_are_not_told_as_if_they_were_0(server: Running, client: httpx.Client) -> None:
    assert DEADLETTERS in REGISTRY._collector_to_names, "its code is there"
    told = {line.split()[2] for line in client.get(server.url + "/metrics").text.splitlines() if "# TYPE" in line}
    ours = {name for name in told if name.startswith("gpuchaos_") and not name.startswith("gpuchaos_serve_")}
    assert ours == {"gpuchaos_records_total"}
    assert "process_start_time_seconds" in told


@pytest.mark.parametrize("url", ["grafana", "ftp://x", "javascript:alert(1)", "http://", "http://x/?a=b", "http://[x"])
def test_a_link_to_grafana_is_an_http_address(url: str) -> None:
    with pytest.raises(UserError, match="--grafana-url"):
        links(url)
    assert (links("https://g.example/sub/").loop or "").startswith("https://g.example/sub/d/gpuchaos-loop?")


def test_the_links_name_dashboards_and_variables_that_there_are() -> None:
    for name, link in links("http://g").model_dump().items():
        path = urlsplit(link)
        board = json.loads((ROOT / f"dashboards/{path.path.removeprefix('/d/')}.json").read_text())
        variables = {f"var-{variable['name']}" for variable in board["templating"]["list"]}
        named = {each.removeprefix("var-") for each in parse_qs(path.query)}
        assert {f"var-{each}" for each in named} <= variables, name
        # One that is chosen among those of another says nothing without it.
        for chosen, selector, _ in choices(board):
            assert chosen not in named or names(selector) <= named, name


def test_a_cluster_is_put_into_its_links_and_cannot_break_out_of_them() -> None:
    found = of_cluster(links("http://g"), "a&b={node}")
    assert found["node"] == "http://g/d/gpuchaos-fleet?var-cluster=a%26b%3D%7Bnode%7D&var-cell={cell}&var-node={node}"
    assert set(of_cluster(links(None), "a").values()) == {None}

"""Writes the agent's settings for the node it runs on: those of the chart, and labels of the node.

Run once before the agent, with a token that may read nodes and nothing else; the agent itself has none.
Environment: NODE_NAME; LABELS, a JSON object of setting → label; FROM and TO, files. Exit status 1 with the reason.
"""

import json
import os
import re
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

# ruff: noqa: INP001 -- a file of the chart, of no package
ACCOUNT = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def labels(node: str) -> dict[str, str]:
    """The node's labels, as the API server has them."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token = (ACCOUNT / "token").read_text().strip()
    request = urllib.request.Request(
        f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/nodes/{node}",
        headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
    )
    trust = ssl.create_default_context(cafile=ACCOUNT / "ca.crt")
    with urllib.request.urlopen(request, timeout=10, context=trust) as answer:  # noqa: S310  (https, above)
        found: dict[str, str] = json.load(answer)["metadata"].get("labels", {})
    return found


def main() -> None:
    """One line a setting is put after the chart's own, which has none of these."""
    node = os.environ["NODE_NAME"]
    try:
        found = labels(node)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"the labels of node {node} cannot be read: {error}")
    lines = []
    for setting, label in sorted(json.loads(os.environ["LABELS"]).items()):
        value = found.get(label)
        if value is None and setting == "cell":
            sys.exit(f"node {node} has no label {label}: label it, or take it out of agent.fromNodeLabels.cell")
        if value is not None and not NAME.match(value):
            sys.exit(f"label {label} of node {node} is {value!r}: letters, digits, . _ - are allowed")
        if value is not None:
            lines.append(f"{setting}: {json.dumps(value)}\n")
    given = Path(os.environ["FROM"]).read_text().rstrip("\n")
    Path(os.environ["TO"]).write_text(given + "\n" + "".join(lines))
    sys.stdout.write(f"node {node}: {', '.join(line.strip() for line in lines)}\n")


main()

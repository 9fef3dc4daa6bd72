"""A server on this machine that speaks as much of W&B's protocol as a client needs, and fails on command.

It answers GraphQL (login, creating and resuming a run, places to upload files to, lists of runs and files,
views), the file stream (rows, summary, end of the run), uploads and downloads, and keeps what it received.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HISTORY = "wandb-history.jsonl"


@dataclass
class Run:
    """A run as the server has it."""

    name: str
    project: str
    entity: str
    job_type: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)
    preempting: bool = False


@dataclass
class Server:
    """What was received, and how the next requests are answered."""

    url: str = ""
    runs: dict[str, Run] = field(default_factory=dict)
    views: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Workspaces and reports by id: what was sent to save them, with ``spec`` read."""
    bodies: list[bytes] = field(default_factory=list)
    """Everything that was sent, as it came."""
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by kind: an operation of GraphQL, ``file_stream`` or ``upload``."""
    failures: dict[str, list[int | str]] = field(default_factory=dict)
    """By kind, or ``*`` for all: answers in place of a good one, each used once. A status, ``reset`` or
    ``hang``; the last is kept if it ends in ``!``, as in ``500!``."""
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def failure(self, kind: str) -> str | None:
        """Return how a request is to fail; None to answer it."""
        with self.lock:
            self.requests[kind] += 1
            waiting = self.failures.get(kind) or self.failures.get("*") or []
            if not waiting:
                return None
            now = str(waiting[0])
            if not now.endswith("!"):
                waiting.pop(0)
            return now.removesuffix("!")

    def graphql(self, operation: str, query: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return the ``data`` of an answer."""
        if "upsertBucket" in query:
            return self._upsert(given)
        if "createRunFiles" in query:
            names = given.get("files") or []
            run = self.runs[given["run"]]
            address = f"{self.url}/upload/{run.name}"
            files = [{"name": name, "uploadUrl": f"{address}/{name}"} for name in names]
            return {"createRunFiles": {"runID": run.name, "uploadHeaders": [], "files": files}}
        if "viewer" in query:
            return {"viewer": VIEWER, "serverInfo": SERVER_INFO}
        if "serverInfo" in query:
            return {"serverInfo": SERVER_INFO}
        if "upsertView(" in query:
            return {"upsertView": self._view(given)}
        if operation == "ProjectInternalId":
            return {"project": {"id": "p", "internalId": "1"}}
        if operation == "GetProjects":
            return {"models": self._projects()}
        if operation == "ArtifactType":
            return {"project": {"artifact": None}}
        if operation == "CreateArtifact":  # as if it were there already: tables come as files of the run too
            known = {"id": "a", "state": "COMMITTED", "artifactSequence": {"latestArtifact": {"id": "a"}}}
            return {"createArtifact": {"artifact": known}}
        if "runs(" in query:
            return {"project": self._runs(given)}
        if "files(" in query:
            return {"project": {"internalId": "p", "run": self._files(given)}}
        if re.search(r"\bmodel\(", query):
            found = self.runs.get(given.get("name") or "")
            return {
                "model": {
                    "id": "p",
                    "name": "p",
                    "entity": {"id": "e", "name": "me"},
                    "bucket": _bucket(found),
                }
            }
        return {}

    def _upsert(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given.get("name") or given.get("id")
        run = self.runs.setdefault(
            name, Run(name=name, project=given.get("project") or "", entity=given.get("entity") or "me")
        )
        if given.get("config"):
            run.config = {k: v["value"] for k, v in json.loads(given["config"]).items() if k != "_wandb"}
        run.job_type = given.get("jobType") or run.job_type
        if given.get("tags") is not None:
            run.tags = list(given["tags"])
        project = {"id": "p", "name": run.project, "entity": {"id": "e", "name": run.entity}}
        bucket = {
            "id": name, "name": name, "displayName": name, "description": None, "config": "{}",
            "sweepName": None, "project": project, "historyLineCount": len(run.history),
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": not run.history}}

    def _view(self, given: dict[str, Any]) -> dict[str, Any]:
        """Keep a workspace or a report under its id; one that has none yet is new."""
        name = given.get("id") or f"view{len(self.views)}"
        inserted = name not in self.views
        self.views[name] = {**given, "spec": json.loads(given["spec"])}
        project = {"name": given.get("projectName"), "entityName": given.get("entityName")}
        return {"view": {**given, "id": name, "project": project}, "inserted": inserted}

    def _projects(self) -> dict[str, Any]:
        """Return the projects of the runs."""
        names = sorted({run.project for run in self.runs.values()})
        plain = {"__typename": "Project", "createdAt": "2026-01-01", "isBenchmark": False, "user": None}
        edges = [{"node": {**plain, "id": name, "name": name, "entityName": "me"}} for name in names]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"pageInfo": page, "edges": edges}

    def _runs(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the runs of a project, as the client's public API lists them."""
        found = [run for run in self.runs.values() if run.project == given.get("project")]
        wanted = json.loads(given.get("filters") or "{}").get("jobType")
        found = [run for run in found if wanted in (None, run.job_type)]
        page = {"endCursor": None, "hasNextPage": False}
        edges = [{"node": _listed(run), "cursor": run.name} for run in found]
        runs = {"edges": edges, "pageInfo": page}
        return {"internalId": "p", "runCount": len(found), "readOnly": False, "runs": runs}

    def _files(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the files of a run that are asked for by name, with where to download them."""
        run = self.runs[given["name"]]
        asked = given.get("fileNames") or list(run.files)
        page = {"endCursor": None, "hasNextPage": False}
        nodes = [_file(self.url, run, name) for name in asked if name in run.files]
        edges = [{"node": node, "cursor": node["name"]} for node in nodes]
        return {"fileCount": len(run.files), "files": {"edges": edges, "pageInfo": page}}

    def stream(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Take rows, summary and the end of a run."""
        run = self.runs[name]
        for file, chunk in (body.get("files") or {}).items():
            rows = [json.loads(line) for line in chunk["content"]]
            if file == HISTORY:
                offset = chunk["offset"]
                assert offset <= len(run.history), "rows were left out"
                run.history[offset : offset + len(rows)] = rows
            elif file == "wandb-summary.json":
                run.summary = rows[-1]
        if body.get("complete"):
            run.exit_codes.append(int(body.get("exitcode") or 0))
        run.preempting = run.preempting or bool(body.get("preempting"))
        return {"exitcode": None, "limits": {}}


VIEWER = {
    "id": "me", "entity": "me", "username": "me", "flags": "{}", "email": "me@example.org", "admin": False,
    "teams": {"edges": []},
}  # fmt: skip
SERVER_INFO = {
    "cliVersionInfo": {"max_cli_version": "99.0.0", "min_cli_version": "0.10.0"},
    "latestLocalVersionInfo": None,
    "features": [],
}


def _bucket(run: Run | None) -> dict[str, Any] | None:
    """Return the state of a run that a client asks for before it goes on with it."""
    if run is None:
        return None
    return {
        "id": run.name, "name": run.name, "summaryMetrics": json.dumps(run.summary), "displayName": run.name,
        "logLineCount": 0, "historyLineCount": len(run.history), "eventsLineCount": 0,
        "historyTail": json.dumps([json.dumps(row) for row in run.history[-1:]]), "eventsTail": "[]",
        "config": json.dumps({key: {"value": value} for key, value in run.config.items()}),
        "tags": run.tags, "wandbConfig": json.dumps({"t": 1}),
    }  # fmt: skip


def _listed(run: Run) -> dict[str, Any]:
    """Return a run as a list of runs has it."""
    times = dict.fromkeys(("createdAt", "heartbeatAt"), "2026-01-01T00:00:00")
    absent = dict.fromkeys(("sweepName", "group", "commit", "description", "notes"))
    return {
        "id": run.name, "name": run.name, "displayName": run.name, "projectId": "1", "state": "finished",
        "tags": run.tags, "jobType": run.job_type, "readOnly": False, "historyLineCount": len(run.history),
        "user": {"name": "me", "username": "me"}, **times, **absent,
    }  # fmt: skip


def _file(url: str, run: Run, name: str) -> dict[str, Any]:
    """Return a file as a list of files has it."""
    address = f"{url}/upload/{run.name}/{name}"
    content = run.files[name]
    return {
        "id": name, "name": name, "url": address, "directUrl": address, "mimetype": None, "md5": "",
        "sizeBytes": len(content), "updatedAt": "2026-01-01T00:00:00",
    }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: Server

    def do_GET(self) -> None:
        parts = self.path.split("/", 3)
        if parts[1] != "upload":
            self._answer({})
        elif not self._failed("download"):
            self._send(self.server_state.runs[parts[2]].files[parts[3]])

    def do_POST(self) -> None:
        state, data = self.server_state, self._body()
        body = json.loads(data or b"{}")
        if self.path.endswith("/graphql"):
            query = body.get("query", "")
            operation = (
                body.get("operationName") or (re.findall(r"(?:query|mutation)\s+(\w+)", query) or ["?"])[0]
            )
            if not self._failed(operation):
                with state.lock:
                    self._answer({"data": state.graphql(operation, query, body.get("variables") or {})})
        elif not self._failed("file_stream"):
            with state.lock:
                self._answer(state.stream(self.path.split("/")[-2], body))

    def do_PUT(self) -> None:
        data = self._body()
        if not self._failed("upload"):
            _, _, name, file = self.path.split("/", 3)
            with self.server_state.lock:
                self.server_state.runs[name].files[file] = data
            self._answer({})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server_state.bodies.append(body)
        return body

    def _failed(self, kind: str) -> bool:
        failure = self.server_state.failure(kind)
        if failure is None:
            return False
        if failure == "hang":
            self.server_state.closing.wait(120)
        if failure in ("hang", "reset"):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        else:
            self._answer({"error": "as asked for"}, int(failure))
        return True

    def _answer(self, tree: dict[str, Any], status: int = 200) -> None:
        self._send(json.dumps(tree).encode(), status)

    def _send(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that went away."""


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server on a free port of this machine."""
    state = Server()
    handler = type("Handler", (_Handler,), {"server_state": state})
    server = _QuietServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        server.server_close()

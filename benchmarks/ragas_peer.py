"""RAGAS 0.4.3 beside us: the same rows, judge, server and embedder, in an environment of its own.

The environment is made where it is not there, which needs a connection to a package index; everything else
stays on the loopback address, RAGAS's telemetry is off.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from offline_judge.backends.protocol import Embedder

#: Later releases of the two do not go with it.
RAGAS = ("ragas==0.4.3", "langchain-community<0.4", "langchain-openai<1")
ENVIRONMENT = Path("runs/ragas-0.4.3")
_WORKER = Path(__file__).with_name("ragas_worker.py")
#: Rows that `KeptRagas` gives to one process: as many are lost when it is killed. Fewer would leave
#: the server with one last, long answer more often.
_ROWS_AT_ONCE = 40

Scores = dict[str, list["float | None"]]


def make_environment(folder: Path) -> Path:
    """Return the Python of the environment that holds RAGAS; made where it is not there."""
    python = folder / "bin" / "python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *RAGAS], check=True)
    return python


@dataclass(frozen=True)
class Ragas:
    """RAGAS with its judge and embedder.

    Attributes:
        python: of its environment.
        judge: address of an OpenAI-compatible server, up to /v1.
        model: how requests name the judge's model.
        embeddings: server of the embedder.
    """

    python: Path
    judge: str
    model: str
    embeddings: EmbeddingServer

    def score(self, rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> Scores:
        """Scores of every metric (by our names) in row order, None where RAGAS has none."""
        task = {
            "rows": [{name: value for name, value in row.items() if name != "id"} for row in rows],
            "metrics": list(metrics),
            "judge": self.judge,
            "model": self.model,
            "embedder": self.embeddings.address,
        }
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "task.json"
            file.write_text(json.dumps(task), encoding="utf-8")
            done = subprocess.run(
                [str(self.python), str(_WORKER), str(file)],
                env={**os.environ, "RAGAS_DO_NOT_TRACK": "true", "PYTHONPATH": ""},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        return json.loads(done.stdout.splitlines()[-1])


class KeptRagas:
    """Scores of RAGAS, kept in a file of JSON lines: the same call goes on where it was stopped.

    `open_peer` is called with the first row that is not known, so that a finished table starts no server.
    """

    def __init__(self, open_peer: Callable[[], Ragas], file: Path, model: str) -> None:
        self._open_peer, self._file, self._model = open_peer, file, model
        self._peer: Ragas | None = None
        self._known: dict[str, float | None] = {}
        if file.is_file():
            for line in file.read_text(encoding="utf-8").splitlines():
                self._known.update(json.loads(line))

    def score(self, rows: Sequence[Mapping[str, Any]], metric: str) -> list[float | None]:
        """Scores of one metric (by our name) in row order, None where RAGAS has none."""
        keys = [self._key(row, metric) for row in rows]
        todo = [(key, row) for key, row in zip(keys, rows, strict=True) if key not in self._known]
        for start in range(0, len(todo), _ROWS_AT_ONCE):
            batch = todo[start : start + _ROWS_AT_ONCE]
            self._peer = self._peer or self._open_peer()
            scores = self._peer.score([row for _, row in batch], [metric])[metric]
            found = {key: score for (key, _), score in zip(batch, scores, strict=True)}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            self._known.update(found)
        return [self._known[key] for key in keys]

    def _key(self, row: Mapping[str, Any], metric: str) -> str:
        about = json.dumps([self._model, metric, row], sort_keys=True)
        return hashlib.sha256(about.encode()).hexdigest()


class EmbeddingServer:
    """`/v1/embeddings` over a local model, so that RAGAS needs no torch in its own environment."""

    def __init__(self, embedder: Embedder) -> None:
        """Serve `embedder` in a thread of its own until the process ends."""
        self._embedder = embedder
        self._port = 0
        started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve(started)), daemon=True).start()
        started.wait()

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def _serve(self, started: threading.Event) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/embeddings", self._embed)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port = runner.addresses[0][1]
        started.set()
        await asyncio.Event().wait()

    async def _embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        vectors = self._embedder.embed(texts).tolist()
        found = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(vectors)]
        usage = {"prompt_tokens": 0, "total_tokens": 0}
        return web.json_response({"object": "list", "data": found, "model": "e", "usage": usage})

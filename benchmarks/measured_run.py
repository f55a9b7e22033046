"""What every benchmark of agreement shares: models opened once, one answer store, seconds, the results."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agreement_statistics import Figure
from ragas_peer import ENVIRONMENT, EmbeddingServer, KeptRagas, Ragas, make_environment

from offline_judge import Result, UserError, __version__, evaluate
from offline_judge.backends import open_embedder, open_judge, open_verifier
from offline_judge.backends.protocol import Embedder, Judge, Verifier
from offline_judge.backends.served.vllm_server import VllmServer
from offline_judge.engine.rounds import Engine
from offline_judge.engine.store import Store
from offline_judge.errors import Stopped
from offline_judge.metrics import parse
from offline_judge.progress import TerminalProgress
from offline_judge.run_folder import RunFolder
from offline_judge.shelf import Shelf


class MeasuredRun:
    """Models and the answer store of one benchmark, and the wall seconds of its parts.

    Every answer is in `out/answers.sqlite` as soon as it is known: the same command goes on where it was
    stopped, and once more it asks nothing and gives the same table. Seconds add up over such runs in
    `out/seconds.json`, starts of the engine included.
    """

    def __init__(
        self,
        out: Path,
        judge: str | None = None,
        embedder: str | None = None,
        verifier: str | None = None,
        *,
        seed: int = 0,
        claims: str = "judge",
        prefix: str = "",
        backend: str = "auto",
    ) -> None:
        """Find the models on the shelf; the judge's weights are loaded with the first ask.

        Raises:
            UserError: where a model is not on the shelf.
        """
        self.out, self.seed, self.claims, self.prefix = out, seed, claims, prefix
        out.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self.judge: Judge | None = None
        self.embedder: Embedder | None = None
        self.verifier: Verifier | None = None
        found_judge = Shelf().find(judge, "judge") if judge is not None else None
        if found_judge is not None:
            self.judge = open_judge(
                found_judge.path,
                name=found_judge.name,
                fingerprint=found_judge.fingerprint,
                backend=backend,
            )
            self._stack.callback(self.judge.close)
        if embedder is not None:
            found = Shelf().find(embedder, "embedder")
            self.embedder = open_embedder(found.path, name=found.name, fingerprint=found.fingerprint)
            self._stack.callback(self.embedder.close)
        if verifier is not None:
            found = Shelf().find(verifier, "verifier")
            self.verifier = open_verifier(found.path, name=found.name, fingerprint=found.fingerprint)
            self._stack.callback(self.verifier.close)
        self._seconds_file = out / "seconds.json"
        self.seconds: dict[str, float] = {}
        if self._seconds_file.is_file():
            self.seconds = json.loads(self._seconds_file.read_text(encoding="utf-8"))
        self.usage: dict[str, Any] = {}
        self._judge_folder = found_judge.path if found_judge else None

    def __enter__(self) -> MeasuredRun:
        """Keep the models open."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the models."""
        self._stack.close()

    def can(self, metric: Any) -> bool:
        """Whether the models that a metric asks are here; a judge is a verifier, too."""
        metric = parse(metric) if isinstance(metric, str) else metric
        here = {role for role in ("judge", "embedder", "verifier") if getattr(self, role) is not None}
        return set(metric.uses) <= (here | {"verifier"} if "judge" in here else here)

    @property
    def name(self) -> str:
        """Name of what says whether a claim is supported."""
        checker = self.verifier or self.judge
        return checker.name if checker is not None else "no judge"

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the seconds of this block to those of `part`, also where it is stopped half-way."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - started
            rounded = {name: round(value, 1) for name, value in self.seconds.items()}
            self._seconds_file.write_text(json.dumps(rounded, indent=2) + "\n", encoding="utf-8")

    def score(
        self,
        part: str,
        rows: Sequence[Mapping[str, Any]],
        metrics: Sequence[Any],
        claims: str | None = None,
    ) -> Result:
        """Evaluate rows with metrics; the run folder is `out/part`, behind `prefix` where there is one."""
        part = f"{self.prefix}-{part}" if self.prefix else part
        with self.timed(part), TerminalProgress() as progress:
            result = evaluate(
                rows,
                metrics,
                judge=self.judge or "none",
                embedder=self.embedder,
                verifier=self.verifier,
                claims=claims or self.claims,
                reasons="none",
                seed=self.seed,
                out=str(self.out),
                name=part,
                store=str(self.out / "answers.sqlite"),
                progress=progress,
            )
        self.usage[part] = result.record["usage"]
        return result

    @contextmanager
    def engine(self, part: str) -> Iterator[Engine]:
        """Open an engine on the same judge and store, for asks that are no metric."""
        store = Store(self.out / "answers.sqlite")
        engine = Engine(self.judge, self.embedder, store=store, seed=self.seed)
        try:
            with self.timed(part):
                yield engine
        finally:
            store.close()
        self.usage[part] = dataclasses.asdict(engine.usage)

    def ragas(self, environment: Path) -> KeptRagas:
        """RAGAS on a vLLM server of the judge's own model, started when its first row is asked.

        Our judge is closed by then: there may be no memory for the model twice.
        """
        judge, embedder, folder = self.judge, self.embedder, self._judge_folder
        if judge is None or embedder is None or folder is None:
            raise UserError("RAGAS needs a judge and an embedder", {"to fix": "--judge and --embedder"})
        python = make_environment(environment)

        def open_peer() -> Ragas:
            judge.close()
            server = self._stack.enter_context(VllmServer(folder, judge.name, self.out / "vllm.log"))
            return Ragas(python, server.address, server.name, EmbeddingServer(embedder))

        return KeptRagas(open_peer, self.out / "ragas.jsonl", judge.name)

    def environment(self) -> dict[str, Any]:
        """Return models, versions and machine."""
        models = {"judge": self.judge, "embedder": self.embedder, "verifier": self.verifier}
        return {
            "offline_judge": __version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "models": {
                role: {"name": model.name, "fingerprint": model.fingerprint, **model.describe()}
                for role, model in models.items()
                if model is not None
            },
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "usage": self.usage,
        }

    def write(self, name: str, result: Mapping[str, Any], markdown: str) -> None:
        """Write `out/name.json` and `out/name.md`, and print the latter."""
        text = json.dumps(result, ensure_ascii=False, indent=2, allow_nan=False)
        (self.out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        (self.out / f"{name}.md").write_text(markdown + "\n", encoding="utf-8")
        print(markdown)


def plain(found: Any) -> dict[str, Any]:
    """Return a record with its figures as JSON takes them."""
    fields = dataclasses.asdict(found) if dataclasses.is_dataclass(found) else found._asdict()
    return {
        name: Figure(*value).to_json() if isinstance(value, Figure) else value
        for name, value in fields.items()
    }


def evidence_of(result: Result, metric: str) -> dict[str, dict[str, Any]]:
    """What the scores of one metric were computed from, by row id."""
    lines = RunFolder(result.folder).evidence()
    return {line["id"]: line for line in lines if line["metric"] == metric and "values" in line}


def arguments(description: str, n: int) -> argparse.ArgumentParser:
    """Build the parser with the options that all benchmarks of agreement share."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--data-folder", type=Path, required=True, help="folder that holds the labelled sets")
    parser.add_argument("--judge", help="a model on the shelf or a model folder; without it, floors alone")
    parser.add_argument("--embedder", help="likewise")
    parser.add_argument("--verifier", help="likewise, an encoder; without it, the judge is the verifier")
    parser.add_argument("--backend", choices=("auto", "vllm", "transformers"), default="auto")
    parser.add_argument("--n", type=int, default=n, help=f"rows of each set (default {n})")
    parser.add_argument("--seed", type=int, default=0, help="of the sample, the halves and the intervals")
    parser.add_argument("--claims", choices=("judge", "sentences"), default="judge", help="who splits texts")
    parser.add_argument("--out", type=Path, default=Path("runs/agreement"), help="folder of the results")
    parser.add_argument(
        "--ragas",
        type=int,
        default=0,
        metavar="N",
        help="RAGAS 0.4.3 beside it on a vLLM server of the same judge, over the first N rows",
    )
    parser.add_argument(
        "--ragas-environment", type=Path, default=ENVIRONMENT, help="made where it is not there"
    )
    return parser


def run_main(main: Any) -> None:
    """Run `main`; what the user can mend ends with a message and status 2, a stopped run with 130."""
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except Stopped as stopped:
        print(f"{stopped}: the same command goes on", file=sys.stderr)
        raise SystemExit(130) from stopped


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)

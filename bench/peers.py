"""Run the same workloads on Stoker and its peers, in turns, and print medians and ratios.

    python -m bench.peers --json FILE [--only a,b,...] [--peers stoker,transformers,...] [--rounds N] [--quick]

Each round starts every peer once, alone, from cold; every second round goes through them in reverse, so that a drift
of the machine does not favour one. All peers get the same prompts in a round and new ones in the next.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from rich.console import Console

from bench import gateway, machine
from bench.adapters import llama_cpp, openvino, stoker, transformers, vllm_cpu
from bench.adapters.base import WORK_SECONDS, Missing, Peer, Session, memory_metrics
from bench.bars import BY_KEY
from bench.client import BenchError
from bench.report import Report, notes, number, table
from bench.workloads import FULL, QUICK, WORKLOADS, Prompts, Sizes

PEERS_FOLDER = Path(".peers")
ADAPTERS: dict[str, Callable[[Path], Peer | Missing]] = {
    "stoker": stoker.peer,
    "transformers": transformers.peer,
    "llama_cpp": llama_cpp.peer,
    "vllm_cpu": vllm_cpu.peer,
    "openvino": openvino.peer,
}
console = Console(stderr=True)


async def measure(peer: Peer, report: Report, sizes: Sizes, prompts: Prompts, folder: Path) -> None:
    """One peer's turn of one round. What fails is written into the report and the rest goes on."""
    try:
        if set(report.workloads) - {"g"}:
            async with peer.session(folder, prompts) as session:
                try:
                    await _measure_session(peer.name, session, report, sizes, prompts)
                except BenchError as error:
                    raise BenchError(f"{error}\n{session.process.log_tail()}") from error
        if "g" in report.workloads and peer.name == "stoker":
            _keep(report, peer.name, await gateway.measure(folder))
    except (BenchError, TimeoutError) as error:
        message = str(error) or f"a workload took longer than {WORK_SECONDS:.0f} s"
        report.fail(peer.name, message)
        console.print(f"  failed: {message}", style="red", markup=False, soft_wrap=True)


async def _measure_session(name: str, session: Session, report: Report, sizes: Sizes, prompts: Prompts) -> None:
    asked = report.workloads
    _keep(report, name, {"cold_s": session.cold_s} if "e" in asked else {})
    for workload in ["warm-up", *(each for each in asked if each in "abcd")]:
        async with asyncio.timeout(WORK_SECONDS):
            _keep(report, name, await session.runner.run(workload, sizes, prompts) or {})
    _keep(report, name, memory_metrics(session.process) if "f" in asked else {})


def _keep(report: Report, peer: str, values: dict[str, float]) -> None:
    report.add(peer, values)
    for key, value in values.items():
        metric = BY_KEY[key]
        console.print(f"  ({metric.workload}) {metric.label}: {number(value)} {metric.unit}", markup=False)


async def run(report: Report, names: list[str], sizes: Sizes, rounds: int, save: Callable[[], None]) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    peers: list[Peer] = []
    for name in names:
        console.print(f"preparing {name}", style="bold")
        try:
            found = ADAPTERS[name](PEERS_FOLDER)
        except BenchError as error:
            report.fail(name, str(error))
            continue
        if isinstance(found, Missing):
            report.missing[name] = found.how
        else:
            peers.append(found)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        for index in range(rounds):
            prompts = Prompts(f"{report.seed}/{index}")
            for peer in peers if index % 2 == 0 else reversed(peers):
                spent = time.perf_counter() - start
                console.print(f"round {index + 1} of {rounds}, {peer.name} ({spent:.0f} s so far)", style="bold")
                await measure(peer, report, sizes, prompts, Path(folder))
                save()
    report.complete = True


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Stoker and its peers side by side.")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the report here (kept up to date while running)"
    )
    parser.add_argument("--only", type=_workloads, default=WORKLOADS, metavar="a,b,...", help="workloads, default all")
    parser.add_argument("--peers", type=_peers, default=list(ADAPTERS), metavar="NAME,...", help=", ".join(ADAPTERS))
    parser.add_argument("--rounds", type=_positive, default=3, metavar="N", help="turns for each peer, default 3")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that all runs, its figures are noise")
    parser.add_argument("--seed", default=None, help="for the prompts; default random, so that no cache helps")
    return parser.parse_args(arguments)


def _workloads(text: str) -> str:
    asked = set(text.replace(",", ""))
    if not asked or asked - set(WORKLOADS):
        raise argparse.ArgumentTypeError(f"workloads are letters of {WORKLOADS}, separated by commas")
    return "".join(sorted(asked))


def _peers(text: str) -> list[str]:
    names = [name.strip().replace("-", "_") for name in text.split(",")]
    unknown = [name for name in names if name not in ADAPTERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no peer {', '.join(unknown)}; there are {', '.join(ADAPTERS)}")
    return list(dict.fromkeys(names))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    sizes = QUICK if options.quick else FULL
    report = Report(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=shlex.join(["python", "-m", "bench.peers", *(sys.argv[1:] if arguments is None else arguments)]),
        machine=machine.describe(),
        seed=options.seed or secrets.token_hex(4),
        sizes=asdict(sizes),
        workloads=options.only,
    )

    def save() -> None:
        if options.json is not None:
            options.json.write_bytes(report.to_json())

    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        uvloop.run(run(report, options.peers, sizes, options.rounds, save))
    save()
    out = Console()
    out.print(table(report))
    for note in notes(report):
        out.print(note, markup=False, highlight=False, soft_wrap=True)
    out.print(
        report.figure, style="bold green" if report.ok else "bold red", markup=False, highlight=False, soft_wrap=True
    )
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())

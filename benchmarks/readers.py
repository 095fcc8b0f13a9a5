"""How fast the readers are beside fio, and how soon a busy program sees that a read is done.

`python benchmarks/readers.py` reads past the page cache, from random places of a file that it makes.  What is compared
takes turns in shuffled order, so drift hits all alike; ratios are medians over rounds of the ratio within a round.

How fast a direct read is can depend on whether its pages happen to lie side by side in memory: a virtual disk gave
1.0 GB/s into scattered pages and 2.7 into huge ones.  `--huge-pages` takes that lottery out of the comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from streaming_core.hardware import Machine, detect
from streaming_core.models import default_cache_dir
from streaming_core.reading import NativeReader, Read, Reader, RecordFile, ThreadReader, native_missing
from streaming_core.reading.files import LARGEST_READ, Bounce

SIZES = (262_144, 1_703_936, 7_012_352)  # 0.25, 1.7 and 7 MB in whole pages
DEPTHS = (1, 4, 8)
MAP_HUGETLB = 0x40000  # Linux; Python has no name for it
INSTALL_FIO = "fio is not on the PATH, so its column is left out; `apt-get install fio` or `brew install fio`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=default_cache_dir(), help="where the file is made and removed")
    parser.add_argument("--file-gib", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waits", type=int, default=300, help="reads looked out for by a busy thread, for each reader")
    parser.add_argument(
        "--huge-pages", action="store_true", help="Linux; needs a pool of them: sysctl -w vm.nr_hugepages=48"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    readers: dict[str, Callable[[int], Reader]] = {"threads": ThreadReader}
    notes = []
    if (missing := native_missing()) is None:
        readers["native"] = NativeReader
    else:
        notes.append(f"the native reader and the delays are left out: {missing}")
    fio = shutil.which("fio")
    if fio is None:
        notes.append(INSTALL_FIO)
    with made_file(args.folder, int(args.file_gib * (1 << 30))) as path:
        bench = Throughput(path, detect(), readers, fio, args.seconds, args.huge_pages)
        rows = [bench.row(nbytes, depth, args.rounds) for nbytes in SIZES for depth in DEPTHS]
        delays = {} if missing is not None else seen_after(path, detect(), args.waits)
    results = {"throughput": rows, "delays_us": {name: percentiles(values) for name, values in delays.items()}}
    print(json.dumps(results | {"notes": notes}) if args.json else "\n".join([table(results), *notes]))


@contextlib.contextmanager
def made_file(folder: Path, nbytes: int) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "benchmark-readers.bin"
    block = random.Random(0).randbytes(1 << 24)
    try:
        with path.open("wb") as out:
            for _ in range(0, nbytes, len(block)):
                out.write(block)
            out.flush()
            # What is still on its way to the disk would be measured too.
            os.fsync(out.fileno())
        detect().drop_cached(path)
        yield path
    finally:
        path.unlink(missing_ok=True)


class Throughput:
    """Bytes per second of fio and of the readers on one file."""

    def __init__(
        self,
        path: Path,
        machine: Machine,
        readers: dict[str, Callable[[int], Reader]],
        fio: str | None,
        seconds: float,
        huge_pages: bool,
    ) -> None:
        self.path = path
        self.machine = machine
        self.readers = readers
        self.fio = fio
        self.seconds = seconds
        self.huge_pages = huge_pages

    def row(self, nbytes: int, depth: int, rounds: int) -> dict[str, Any]:
        names = [*self.readers, *(["fio"] if self.fio else [])]
        rates: dict[str, list[float]] = {name: [] for name in names}
        counts = {name: self.count_for(name, nbytes, depth) for name in self.readers}
        for number in range(rounds):
            for name in random.Random(number).sample(names, len(names)):
                if name == "fio":
                    rates[name].append(self.fio_rate(nbytes, depth))
                else:
                    rates[name].append(self.reader_rate(name, nbytes, depth, counts[name], seed=number))
        row: dict[str, Any] = {"bytes": nbytes, "depth": depth, "bytes_per_s": rates}
        if self.fio:
            row["of_fio"] = {
                name: statistics.median(a / b for a, b in zip(rates[name], rates["fio"], strict=True))
                for name in self.readers
            }
        return row

    def count_for(self, name: str, nbytes: int, depth: int) -> int:
        """How many reads take about as long as one measurement should."""
        rate = self.reader_rate(name, nbytes, depth, 16 * depth, seed=-1)
        return max(16 * depth, int(rate * self.seconds / nbytes))

    def reader_rate(self, name: str, nbytes: int, depth: int, count: int, seed: int) -> float:
        """One ticket of many reads, as a layer asks for them: `depth` threads, the waiting one among them, share it."""
        file = RecordFile(self.path, self.machine, bypass=True)
        reader = self.readers[name](depth)
        try:
            reads = self.reads(file, nbytes, depth, count, seed)
            started = time.perf_counter()
            reader.wait(reader.submit(reads))
            return count * nbytes / (time.perf_counter() - started)
        finally:
            reader.close()
            file.close()

    def reads(self, file: RecordFile, nbytes: int, depth: int, count: int, seed: int) -> list[Read]:
        """As many buffers as reads in flight, as fio has; what ends up in them does not matter."""
        places = file.size // nbytes
        # Its own memory each time, as a new process of fio's has.
        memory = memory_for(depth * nbytes, self.huge_pages)
        views = [memory[n * nbytes : (n + 1) * nbytes] for n in range(depth)]
        rng = random.Random(f"{nbytes} {seed}")
        return [Read(file, rng.randrange(places) * nbytes, [views[n % depth]], "read") for n in range(count)]

    def fio_rate(self, nbytes: int, depth: int) -> float:
        assert self.fio is not None
        options = {
            "name": "reads", "filename": self.path, "rw": "randread", "bs": nbytes, "direct": 1, "ioengine": "psync",
            "numjobs": depth, "runtime": f"{round(self.seconds * 1000)}ms", "output-format": "json",
        }  # fmt: skip
        if self.huge_pages:
            options["mem"] = "mmaphuge"
        flags = ["--thread", "--group_reporting", "--time_based", "--norandommap", "--randrepeat=0"]
        command = [self.fio, *(f"--{key}={value}" for key, value in options.items()), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


def memory_for(nbytes: int, huge_pages: bool) -> memoryview:
    """Private memory that is there, so that no page fault is on the clock."""
    whole = 1 << 21 if huge_pages else mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (MAP_HUGETLB if huge_pages else 0)
    memory = memoryview(mmap.mmap(-1, -(-nbytes // whole) * whole, flags=flags))
    memory[:: mmap.PAGESIZE] = bytes(len(memory) // mmap.PAGESIZE)
    return memory


# ---- from read done to seen ------------------------------------------------------------------------------------------


class TimedFile(RecordFile):
    """Notes when a read ended, before the thread that read asks for Python's lock again."""

    ended_ns = 0

    def fill(self, offset: int, views: Sequence[memoryview], bounce: Bounce, label: str) -> None:
        from streaming_core.reading import _native

        # A pool without threads reads in the calling thread and lets go of the lock meanwhile, just as os.preadv does.
        pool = _native.Pool(0, 1, LARGEST_READ)
        batch = pool.submit([(self.fd, self.align, offset, views)], False)
        pool.wait(batch, True)
        self.ended_ns = batch.ended_ns


def seen_after(path: Path, machine: Machine, waits: int) -> dict[str, list[float]]:
    """Microseconds by reader.  The main thread runs Python all the time and looks at the flag every 5 us or so."""
    from streaming_core.reading import _native

    file = TimedFile(path, machine, bypass=True)
    readers: dict[str, Reader] = {"threads": ThreadReader(2), "native": NativeReader(2)}
    delays: dict[str, list[float]] = {name: [] for name in readers}
    (view,) = [memoryview(mmap.mmap(-1, SIZES[0]))]
    rng = random.Random(0)
    for _ in range(waits):
        for name in rng.sample(sorted(readers), len(readers)):
            place = rng.randrange(file.size // SIZES[0]) * SIZES[0]
            ticket = readers[name].submit([Read(file, place, [view], "read")])
            while not ticket.done:
                some_python()
            seen = _native.now_ns()
            readers[name].wait(ticket)  # raises what went wrong
            ended = getattr(ticket, "ended_ns", file.ended_ns)
            delays[name].append((seen - ended) / 1000)
    for reader in readers.values():
        reader.close()
    file.close()
    return delays


def some_python() -> int:
    number = 1
    for _ in range(60):
        number = (number * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    return number


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]}


# ---- showing ---------------------------------------------------------------------------------------------------------


def table(results: dict[str, Any]) -> str:
    rows = [
        "GB/s, page cache bypassed",
        f"{'MB':>6}{'depth':>7}{'fio':>9}{'native':>9}{'of fio':>8}{'threads':>9}{'of fio':>8}",
    ]
    for row in results["throughput"]:
        cells = [f"{row['bytes'] / 1e6:>6.2f}{row['depth']:>7}"]
        for name in ("fio", "native", "threads"):
            values = row["bytes_per_s"].get(name)
            cells.append(f"{statistics.median(values) / 1e9:>9.3f}" if values else f"{'':>9}")
            if name != "fio":
                ratio = row.get("of_fio", {}).get(name)
                cells.append(f"{ratio:>8.3f}" if ratio else f"{'':>8}")
        rows.append("".join(cells))
    if any("of_fio" in row for row in results["throughput"]):
        rows.append(f"{'all':<22}{all_of_fio(results, 'native'):>17}{all_of_fio(results, 'threads'):>17}")
    if results["delays_us"]:
        rows += ["", "microseconds from read done to seen by a thread that is busy in Python"]
        rows.append(f"{'':<10}{'p50':>10}{'p99':>10}")
        rows += [f"{name:<10}{d['p50']:>10.1f}{d['p99']:>10.1f}" for name, d in results["delays_us"].items()]
    return "\n".join(rows)


def all_of_fio(results: dict[str, Any], name: str) -> str:
    """The median over every round of every row."""
    rates = [row["bytes_per_s"] for row in results["throughput"] if name in row["bytes_per_s"]]
    ratios = [a / b for each in rates for a, b in zip(each[name], each["fio"], strict=True)]
    return f"{statistics.median(ratios):.3f}" if ratios else ""


if __name__ == "__main__":
    main()

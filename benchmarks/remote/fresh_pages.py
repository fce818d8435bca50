"""The minimum cost of fresh pages of shared memory: the CPU time of a first array, and of weights stored once.

    hatch run base:python benchmarks/remote/fresh_pages.py

One process acts as sender and receiver: it writes an array into a new anonymous file, maps the file, and reads a byte
of each page. By hand these are five system calls; ours are the corresponding parts of parl-remote. CPU time depends
little on the machine's other load. A copy into ordinary memory shows the saving by the kernel's large pages, which
shared memory gets only with `/sys/kernel/mm/transparent_hugepage/shmem_enabled`.
"""

import mmap
import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from parl_remote._data.large_frames import Mappings, Segments

PAGE = 4096
REPEATS = 15
READERS = 8
_clock = time.process_time
Step = tuple[float, float]


def by_hand(array: np.ndarray, readers: int) -> Step:
    """Return the seconds of writing, and those of mapping and reading by all readers."""
    begun = _clock()
    descriptor = os.memfd_create("floor")
    os.ftruncate(descriptor, array.nbytes)
    view, done = array.data, 0
    while done < array.nbytes:
        done += os.pwrite(descriptor, view[done:], done)
    written = _clock()
    for _ in range(readers):
        memory = mmap.mmap(descriptor, array.nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        int(np.frombuffer(memory, np.uint8)[::PAGE].sum())
        del memory
    read = _clock()
    os.close(descriptor)
    return written - begun, read - written


def ours(array: np.ndarray) -> Step:
    """Return the seconds of the sender and of the receivers of a segment."""
    segments, mappings = Segments(), Mappings()
    begun = _clock()
    ticket = segments.place([array.data])
    assert ticket is not None
    written = _clock()
    (frame,) = mappings.open(ticket)
    int(np.frombuffer(frame, np.uint8)[::PAGE].sum())
    read = _clock()
    del frame
    segments.close()
    return written - begun, read - written


def ordinary_memory(array: np.ndarray) -> Step:
    """Return the seconds of a copy into new private memory of this process."""
    begun = _clock()
    copy = np.empty_like(array)
    copy[:] = array
    return _clock() - begun, 0.0


def measure(name: str, run: Callable[[], Step]) -> None:
    """Print the medians of a row, in milliseconds."""
    found = [run() for _ in range(REPEATS)]
    write, read = (1e3 * statistics.median(times) for times in zip(*found, strict=True))
    print(f"| {name} | {write:.1f} | {read:.1f} | {write + read:.1f} |")


def main() -> None:
    """Measure and print."""
    large, weights = np.full(100_000_000, 7, np.uint8), np.full(10_000_000, 7, np.uint8)
    print("| ms of CPU | written | mapped and read | together |\n| --- | --- | --- | --- |")
    measure("100 MB, first one, by hand", lambda: by_hand(large, 1))
    measure("100 MB, first one, ours", lambda: ours(large))
    measure("100 MB, copied into ordinary memory", lambda: ordinary_memory(large))
    measure(f"10 MB for {READERS} readers, by hand", lambda: by_hand(weights, READERS))


if __name__ == "__main__":
    main()

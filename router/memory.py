"""How the process treats memory: the C library's allocator, and the interpreter's search for reference cycles."""

import ctypes
import gc

# Of <malloc.h>.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
# Above it a block is the kernel's from the start and goes back to it at once. Few bodies are longer.
LARGEST_KEPT_BYTES = 4 << 20
KEPT_BYTES = 16 << 20
# Objects by which a process grows before it looks for cycles among the new ones. Requests make none, but a hundred of
# them at once are more objects than the interpreter's 700, so that it looked for them a hundred times a second.
NEW_OBJECTS = 50_000


def keep_freed_memory() -> None:
    """Have freed memory kept for the next body, where the C library has ``mallopt`` (glibc; elsewhere: nothing).

    By default glibc asks the kernel for each block above 128 KiB and gives it back, so that every body of that size
    faults in all its pages anew: copying 200 KB took 210 us, and takes 33 us this way (measured on one machine).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def search_cycles_rarely() -> None:
    """To be called when all modules are loaded: what lives now is never searched again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 10, 10)

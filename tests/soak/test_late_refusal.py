"""Two workers that don't pair and load at the same time: neither is there for the other's check at the start."""

import time
from pathlib import Path

import psutil

from tests.stack import stop
from tests.workers import start_worker, static_router, worker_config
from wire.worker_config import EXIT_CONFIG, EXIT_REASON_PREFIX

LOAD_LIMIT_S = 240.0


def test_who_registers_last_is_refused_and_leaves_no_engine(checkpoint: Path, tmp_path: Path) -> None:
    """Its engine runs by then; without its API process nobody could reach it, and it would hold its memory."""
    with static_router(tmp_path, [], [], path="/health") as url:
        workers = [
            start_worker(worker_config("prefill", checkpoint, router_url=url), tmp_path),
            start_worker(worker_config("decode", checkpoint, router_url=url, max_model_len=2048), tmp_path),
        ]
        engines: set[psutil.Process] = set()
        deadline = time.monotonic() + LOAD_LIMIT_S
        try:
            while all(worker.process.poll() is None for worker in workers):
                assert time.monotonic() < deadline, "both were let in"
                for worker in workers:
                    engines.update(worker.engine_processes())
                time.sleep(0.1)
            [refused] = [worker for worker in workers if worker.process.poll() is not None]
            assert refused.process.returncode == EXIT_CONFIG
            text = refused.log.read_text()
            [told] = [line for line in text.splitlines() if line.startswith(EXIT_REASON_PREFIX)]
            assert "max_model_len" in told
            assert "KV rows" in text, "it was refused before its engine was there"
            [kept] = [worker for worker in workers if worker is not refused]
            psutil.wait_procs(engines - set(kept.engine_processes()), timeout=10)
            left = [engine for engine in engines - set(kept.engine_processes()) if engine.is_running()]
            assert not left
        finally:
            for worker in workers:
                stop(worker.process)

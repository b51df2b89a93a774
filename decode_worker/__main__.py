"""``python -m decode_worker --config FILE``: one decode worker."""

from decode_worker.role import ROLE_ARGS
from vllm_engine.main import main
from wire.worker import WorkerRole

if __name__ == "__main__":
    main(WorkerRole.DECODE, ROLE_ARGS)

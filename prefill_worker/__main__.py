"""``python -m prefill_worker --config FILE``: one prefill worker."""

from prefill_worker.role import ROLE_ARGS
from vllm_engine.main import main
from wire.worker import WorkerRole

if __name__ == "__main__":
    main(WorkerRole.PREFILL, ROLE_ARGS)

"""Import what warns on import before warnings become errors; the warnings are vLLM's and torch's own."""

import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import msa_model.model
    import msa_model.plugin

    msa_model.plugin.register()


@pytest.fixture(scope="package")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process as vLLM's only rank, for layers that ask for their place."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    meeting = tmp_path_factory.mktemp("ranks") / "store"
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(1, 0, f"file://{meeting}", 0, "gloo")
        parallel_state.initialize_model_parallel(1)
    yield
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()

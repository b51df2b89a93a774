"""In which order a prefill worker takes the prompts that wait."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

PREFILL_QUEUE_KEY = "tandem_prefill_queue"
"""Of vLLM's ``--additional-config``, in which the scheduler finds it."""


class PrefillQueue(BaseModel):
    """For a short time to first token on the whole, unless told otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: Literal["ttft", "fcfs"] = Field(
        default="ttft", description="ttft: fewest tokens that no cache has first; fcfs: in the order of arrival"
    )
    max_age_s: float = Field(
        default=2.0,
        ge=0,
        le=3600,
        description="ttft: who has waited so long comes before shorter prompts, oldest first",
    )

"""How a prefill engine splits a step's tokens over its ranks and in time: a worker's setting, and its model's."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

TOKEN_SPLIT_KEY = "tandem_token_split"
"""Of vLLM's ``--additional-config``, in which the model finds it."""


class TokenSplit(BaseModel):
    """Nothing is split by default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enable_sp: bool = Field(
        default=False, description="sequence parallelism: each rank keeps its share of the tokens between two layers"
    )
    enable_dbo: bool = Field(
        default=False,
        description="dual batch overlap: each half of a step exchanges under the other's work",
    )
    sp_exchange: Literal["mxfp8", "exact"] = Field(
        default="mxfp8", description="format in which sequence parallelism exchanges activations"
    )
    dbo_min_tokens: int = Field(
        default=2048, ge=2, le=1 << 20, description="smaller steps are not cut in two: each half would be too small"
    )

    @property
    def is_on(self) -> bool:
        return self.enable_sp or self.enable_dbo

    def check_ranks(self, tp_size: int, dp_size: int) -> None:
        """Raise ValueError, naming the key, where there is nothing to exchange or more than a model splits."""
        key = "enable_sp" if self.enable_sp else "enable_dbo"
        if self.is_on and tp_size == 1:
            raise ValueError(f"token_split.{key} needs tp_size > 1: one rank exchanges nothing")
        if self.is_on and dp_size != 1:
            raise ValueError(f"token_split.{key} needs dp_size = 1")

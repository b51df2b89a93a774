"""How one worker group is split over devices."""

from pydantic import BaseModel, ConfigDict, Field


class Parallelism(BaseModel):
    """Degrees of parallelism of one engine; each axis is a count of ranks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tp_size: int = Field(default=1, ge=1, le=64, description="tensor parallel ranks")
    dp_size: int = Field(default=1, ge=1, le=256, description="data parallel replicas inside one engine")
    enable_ep: bool = Field(default=False, description="experts split over tp x dp ranks")
    dcp_size: int = Field(default=1, ge=1, le=64, description="decode context parallel ranks of the indexer")

    @property
    def world_size(self) -> int:
        """Devices that one engine of this shape occupies."""
        return self.tp_size * self.dp_size

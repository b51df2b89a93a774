"""Why a handoff is refused, and how a worker says so to the router."""

from enum import StrEnum

# On a worker's 4xx: the handoff is at fault, not the client's request. The value is the reason.
REFUSED_HEADER = "x-tandem-handoff-refused"


class Refusal(StrEnum):
    """Reasons, as labels of ``tandem_kv_refusals_total`` and values of the header."""

    MALFORMED = "malformed"
    """Not the fields of a handoff, or not of one for this role."""
    SIGNATURE = "signature"
    """Not signed by this deployment, or changed since."""
    VERSION = "version"
    """Written by a wire version that this worker does not read."""
    REPLAYED = "replayed"
    """Its id was used before."""
    UNREGISTERED = "unregistered"
    """It names an engine or address that is not registered: a foreign deployment, or a peer that restarted."""
    MISMATCH = "mismatch"
    """The peer's rows, model or limits differ from ours."""
    PROMPT = "prompt"
    """It was made for another prompt."""
    BLOCKS = "blocks"
    """Its blocks don't hold its tokens, or don't exist."""
    UNREACHABLE = "unreachable"
    """The peer does not answer."""


HTTP_STATUS = {
    Refusal.MALFORMED: 400,
    Refusal.SIGNATURE: 403,
    Refusal.VERSION: 400,
    Refusal.REPLAYED: 409,
    Refusal.UNREGISTERED: 403,
}

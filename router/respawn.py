"""When a process takes the place of one that has ended, and when that has no sense any more."""

# One that lived for so long was no failed start.
STEADY_S = 10.0
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 3.0
# By then it has been tried for six seconds besides the starts themselves: what is wrong stays wrong.
MAX_EARLY_ENDS = 6


class Respawn:
    """The ends of the processes in one place, each of which follows the one before."""

    def __init__(self) -> None:
        self.num_early = 0
        """Ends in a row of processes that had only just been started."""

    def delay_s(self, lived_s: float) -> float | None:
        """One ended after so long: how long to wait with the next; None: start no more."""
        self.num_early = self.num_early + 1 if lived_s < STEADY_S else 0
        if self.num_early > MAX_EARLY_ENDS:
            return None
        return min(FIRST_DELAY_S * 2 ** max(0, self.num_early - 1), MAX_DELAY_S)

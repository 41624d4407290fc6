"""Simultaneous streams, and what they came to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Volley:
    """What simultaneous streams came to: seconds until all had a first token, seconds from the
    first token of any to the end of all, seconds of the whole, and the longest gap of a stream."""

    n_clients: int
    n_prompt: int
    n_generated: int
    t_pp: float
    t_tg: float
    t_all: float
    longest_gap: float

    @property
    def speed_pp(self) -> float:
        return self.n_clients * self.n_prompt / self.t_pp

    @property
    def speed_tg(self) -> float:
        return self.n_clients * self.n_generated / self.t_tg

    @property
    def speed(self) -> float:
        """Tokens per second, read and generated."""
        return self.n_clients * (self.n_prompt + self.n_generated) / self.t_all

"""CPU time, latency and memory of this router beside its peers, over mock engines that know prefill and decode."""

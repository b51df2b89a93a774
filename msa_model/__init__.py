"""The MiniMax-M3.1-Flash (MSA, NVFP4) model as a vLLM plugin, and the nano checkpoint to try it with."""

"""A vLLM and an Ollama made of arithmetic: real HTTP in front of a simulated engine whose every time is known.

The engine (`engine.py`) is a pure state machine; `driver.py` gives it a clock; `vllm.py` and `ollama.py` give
it the faces of the two servers; `traffic.py` and `episodes.py` give them something to do.
"""

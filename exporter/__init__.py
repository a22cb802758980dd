"""llm-vitals: the vital signs of self-hosted LLM servers, for Prometheus and Grafana."""

__version__ = "0.1.0"

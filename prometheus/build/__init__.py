"""Source of the recording rules, the alerts and Grafana's copies of them: `python -m prometheus.build`."""

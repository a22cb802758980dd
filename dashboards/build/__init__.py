"""Builders of the Grafana dashboards: `python -m dashboards.build` writes dashboards/json/*.json."""

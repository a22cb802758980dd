"""Kubernetes manifests: the exporter, what the Prometheus operator needs, and the dashboards for Grafana's sidecar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from exporter import __version__
from exporter.settings import DEFAULT_LISTEN

Document = dict[str, Any]

NAME = "llm-vitals"
USER = 10434
"""The image's user, as a number: the kubelet can then see that it is not root."""

SIDECAR_LABEL = {"grafana_dashboard": "1"}
"""What the dashboard sidecar of Grafana's Helm chart looks for."""

SIDECAR_FOLDER = {"grafana_folder": "LLM vitals"}

_HEADS = {
    "1-exporter.yaml": f"""\
# The exporter. Its image is the project's own: docker build -t REGISTRY/{NAME}:{__version__} . and docker push it
# to where the cluster pulls from; then give that name as `image` below. Name your servers in vitals.yml.
# Keys that they ask for: kubectl create secret generic {NAME} --from-literal=VLLM_API_KEY=...
""",
    "2-prometheus-operator.yaml": """\
# For the Prometheus operator. A Prometheus takes these if its selectors for monitors and rules match their labels:
# kube-prometheus-stack's ask for `release: NAME`, the name of its Helm release, unless told otherwise.
# The alerts' links lead to 127.0.0.1:9090 (docs/runbooks.md) and 127.0.0.1:3000 (Grafana): replace them by yours.
""",
    "3-dashboards.yaml": """\
# For the dashboard sidecar of Grafana's Helm chart, which has to watch this namespace.
""",
}
"""What the reader of a file has to know before it is applied."""

CONFIG = """\
# vitals.example.yml explains all that can be set here; restart the Deployment after a change.
targets:
  - name: vllm
    url: http://vllm:8000
    # bearer_token: ${VLLM_API_KEY}     from the Secret llm-vitals
  - name: ollama
    url: http://ollama:11434
"""


def manifests(dashboards: Mapping[str, str], rules: Mapping[str, str]) -> dict[str, str]:
    """Return YAML by file name; `dashboards` are JSON texts and `rules` Prometheus rule files, by name."""
    groups = [group for text in rules.values() for group in yaml.safe_load(text)["groups"]]
    files = {
        "1-exporter.yaml": [_config(), _deployment(), _service()],
        "2-prometheus-operator.yaml": [_service_monitor(), _prometheus_rule(groups)],
        "3-dashboards.yaml": [_dashboard(name, text) for name, text in dashboards.items()],
    }
    return {name: _HEADS[name] + _yaml(documents) for name, documents in files.items()}


def _metadata(name: str = NAME, **more: Any) -> Document:
    labels = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/version": __version__}
    return {"name": name, "labels": labels | more.pop("labels", {}), **more}


def _config() -> Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(), "data": {"vitals.yml": CONFIG}}


def _deployment() -> Document:
    selector = {"app.kubernetes.io/name": NAME}
    container = {
        "name": "exporter",
        "image": f"{NAME}:{__version__}",
        "env": [{"name": "LLM_VITALS_CONFIG", "value": "/etc/llm-vitals/vitals.yml"}],
        "envFrom": [{"secretRef": {"name": NAME, "optional": True}}],
        "ports": [{"name": "metrics", "containerPort": DEFAULT_LISTEN.port}],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/llm-vitals", "readOnly": True}],
        "livenessProbe": {"httpGet": {"path": "/-/healthy", "port": "metrics"}, "timeoutSeconds": 5},
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": "metrics"}, "timeoutSeconds": 5},
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(),
        "spec": {
            # Two would probe every server twice and export every series twice.
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": _metadata()["labels"]}, "spec": pod},
        },
    }


def _service() -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(),
        "spec": {
            "selector": {"app.kubernetes.io/name": NAME},
            "ports": [{"name": "metrics", "port": DEFAULT_LISTEN.port, "targetPort": "metrics"}],
        },
    }


def _service_monitor() -> Document:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _metadata(),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            # The job is the Service's name, which is what dashboards and rules know it by.
            "endpoints": [{"port": "metrics", "interval": "5s", "scrapeTimeout": "4s"}],
        },
    }


def _prometheus_rule(groups: list[Document]) -> Document:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata(),
        "spec": {"groups": groups},
    }


def _dashboard(name: str, text: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(f"{NAME}-{name}", labels=SIDECAR_LABEL, annotations=SIDECAR_FOLDER),
        "data": {f"{name}.json": text},
    }


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, so that a person can read and edit them."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write what occurs twice twice: an anchor is no help to who edits the file."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(documents: Iterable[Document]) -> str:
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=120)

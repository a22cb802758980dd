"""The systemd unit for the exporter as it is installed here."""

from __future__ import annotations

from pathlib import Path


def hidden(prefix: Path) -> bool:
    """Return whether the environment `prefix` lies where ProtectHome= lets the unit see nothing."""
    return any(prefix.is_relative_to(home) for home in ("/home", "/root", "/run/user"))


def unit(prefix: Path) -> str:
    """Return the unit; `prefix` is the environment that the program is installed in."""
    return _UNIT.format(program=prefix / "bin/llm-vitals")


_UNIT = """\
# sudo cp llm-vitals.service /etc/systemd/system/ && sudo systemctl enable --now llm-vitals
# /etc/llm-vitals/env holds the settings: VLLM_URL=..., OLLAMA_URL=..., VLLM_API_KEY=..., LLM_VITALS_LISTEN=..., or
# LLM_VITALS_CONFIG=/etc/llm-vitals/vitals.yml. Without it the usual ports of this machine are looked at.
# The program has a user of its own, who must be able to read vitals.yml; `systemctl reload llm-vitals` reads it again.
[Unit]
Description=llm-vitals: the vital signs of LLM servers, for Prometheus
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
EnvironmentFile=-/etc/llm-vitals/env
ExecStart={program} run
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
TimeoutStopSec=10
MemoryMax=256M
TasksMax=64

DynamicUser=yes
CapabilityBoundingSet=
LockPersonality=yes
NoNewPrivileges=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077

[Install]
WantedBy=multi-user.target
"""

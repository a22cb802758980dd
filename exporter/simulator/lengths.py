"""How long prompts and answers are: log-normal fits of published traces, in tokens.

A log-normal is an approximation: the real ones have several humps (templates, cut-offs at the context).
The Azure figures are the mean and standard deviation of the logarithms over all requests of the public files
AzureLLMInferenceTrace_conv.csv (19,366 requests, medians 1020 in and 129 out) and _code.csv (8,819, medians
1469 and 13) of Azure/AzurePublicDataset, described in Splitwise (ISCA 2024).  For ShareGPT the vLLM paper
(SOSP 2023, figure 11) gives means only, 161 in and 338 out; the spread is assumed to be 1.0 as in Azure's.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogNormal:
    """`exp(normal(log(median), sigma))` in whole tokens, cut to 1..`longest`."""

    median: float
    sigma: float
    longest: int = 8192

    def draw(self, rng: random.Random) -> int:
        """Return one length."""
        return max(1, min(self.longest, round(rng.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of a workload's prompts and answers."""

    name: str
    prompt: LogNormal
    output: LogNormal


def _from_mean(mean: float, sigma: float) -> LogNormal:
    return LogNormal(mean / math.exp(sigma**2 / 2), sigma)


SHAREGPT = Lengths("ShareGPT", _from_mean(161, 1.0), _from_mean(338, 1.0))
AZURE_CONVERSATION = Lengths("Azure 2023 conversation", LogNormal(760, 0.985), LogNormal(151, 0.859, 1000))
AZURE_CODE = Lengths("Azure 2023 code", LogNormal(1095, 1.36, 7437), LogNormal(16.3, 0.847, 1899))

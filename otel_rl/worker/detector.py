"""The worker's identity for a plain OpenTelemetry SDK.

``OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=otel_rl`` adds it to the resource of every provider that the
SDK makes, so that its metrics and spans arrive as those of a worker.
"""

import os
import socket

from opentelemetry.sdk.resources import Resource, ResourceDetector

from otel_rl.worker.identity import detect
from otel_rl.worker.launcher import process_name

__all__ = ["WorkerResourceDetector"]


class WorkerResourceDetector(ResourceDetector):
    """Finds experiment, trial, role, index, count and tag as ``otel_rl.init`` would, and the host.

    What is nowhere said is left out. ``OTEL_RESOURCE_ATTRIBUTES`` wins.
    """

    def detect(self) -> Resource:
        """The resource.

        Raises:
            ConfigError: What the environment says is wrong. The SDK logs it and goes on without.
        """
        return Resource({"host.name": socket.gethostname(), **detect(os.environ, process_name())})

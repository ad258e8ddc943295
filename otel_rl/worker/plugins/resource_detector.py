"""Adds the worker's identity to a plain OpenTelemetry SDK.

With ``OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=otel_rl`` the SDK adds it to the resource of every
provider, so that its metrics and spans arrive as those of a worker.
"""

import os
import socket

from opentelemetry.sdk.resources import OTELResourceDetector, Resource, ResourceDetector

from otel_rl.worker.identity import detect, instance_id
from otel_rl.worker.launch import launch_of, process_name

__all__ = ["WorkerResourceDetector"]


class WorkerResourceDetector(ResourceDetector):
    """Detects experiment, trial, role, index, count and tag as ``otel_rl.init`` does, and the host.

    Unset attributes are omitted. ``OTEL_RESOURCE_ATTRIBUTES`` takes precedence.
    """

    def detect(self) -> Resource:
        """Return the resource.

        Raises:
            ConfigError: The environment has a wrong value. The SDK logs it and continues without.
        """
        found = detect(os.environ, process_name(), launch=lambda: launch_of(os.environ).id)
        own = {"host.name": socket.gethostname(), "service.instance.id": instance_id(), **found}
        # An older SDK merges its own detector and this one in any order.
        return Resource(own).merge(OTELResourceDetector().detect())

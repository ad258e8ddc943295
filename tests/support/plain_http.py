"""Requests without TLS. httpx reads the certificates of the system for each one: 30 ms of CPU."""

from functools import partial

import httpx

get = partial(httpx.get, verify=False)
post = partial(httpx.post, verify=False)

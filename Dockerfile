# The bridge, with the W&B tracker, PostgreSQL's client and the demo. No root, no compiler, nothing but Python and what
# requirements-image.lock names.
ARG PYTHON=python:3.12.11-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /source
COPY requirements-image.lock ./
# Every package is checked against its hash. What only builds the package is left behind here.
RUN python3 -m venv /opt/otel_rl \
 && /opt/otel_rl/bin/pip wheel --quiet --disable-pip-version-check --no-deps --require-hashes \
      -r requirements-image.lock -w /wheels
COPY pyproject.toml README.md LICENSE ./
COPY docs ./docs/
COPY otel_rl ./otel_rl
RUN /opt/otel_rl/bin/pip install --quiet --disable-pip-version-check --no-index --find-links /wheels \
      ".[all]"

FROM ${PYTHON}
COPY --from=build /opt/otel_rl /opt/otel_rl
# A new volume takes over the owner of the directory that it is mounted on. The collector and Jaeger have no such
# directories in their images, and run as the same user: see `volumes` in docker-compose.yml.
RUN for name in bridge gateway jaeger bridges scale_gateway; do install -d -o 10001 -g 10001 -m 700 /var/lib/otel_rl/$name; done
ENV PATH=/opt/otel_rl/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp
USER 10001:10001
WORKDIR /var/lib/otel_rl/bridge
EXPOSE 4337 4338 4339
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=6 \
  CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:4339/healthz', timeout=4)"]
# SIGTERM takes nothing more and writes what was taken; give it time (docker stop --time 330).
ENTRYPOINT ["otel-rl"]
# 4339 answers health probes only, without TLS and tokens, whatever the other two demand.
CMD ["bridge", "--http", "0.0.0.0:4338", "--grpc", "0.0.0.0:4337", "--health", "0.0.0.0:4339", \
     "--data", "/var/lib/otel_rl/bridge"]

#!/usr/bin/env bash
# Makes the images that docker-compose.yml names where none can be pulled: the Collector and Jaeger
# from `make lab`, Python from Debian's packages. Needs docker and debootstrap, and root.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(sed -n 's/^ARG PYTHON=//p' Dockerfile)
collector=$(sed -n 's/^ *image: \(otel\/.*\)/\1/p' docker-compose.yml)
jaeger=$(sed -n 's/^ *image: \(jaegertracing\/.*\)/\1/p' docker-compose.yml)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,busybox \
  bookworm "$work/root" >"$work/log" || { tail "$work/log"; exit 1; }
cp /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/" # those that this machine trusts
ln -sf busybox "$work/root/bin/wget"
tar -C "$work/root" -c . | docker import - "$python"

.venv/bin/python -m tests.lab
lab=$(.venv/bin/python -c 'from tests.lab.programs import *; print(COLLECTOR.path, JAEGER.path)')
read -r otelcol_binary jaeger_binary <<<"$lab"
image() { # NAME BASE BINARY PATH
  mkdir "$work/context"
  cp "$3" "$work/context/program"
  printf 'FROM %s\nUSER 10001\nCOPY program %s\nENTRYPOINT ["%s"]\n' "$2" "$4" "$4" \
    >"$work/context/Dockerfile"
  docker build --quiet --tag "$1" "$work/context"
  rm -r "$work/context"
}
image "$collector" scratch "$otelcol_binary" /otelcol-contrib
image "$jaeger" "$python" "$jaeger_binary" /cmd/jaeger/jaeger-linux

#!/usr/bin/env bash
# Makes the images that docker-compose.yml names where none can be pulled: the Collector and Jaeger
# from `make lab`, Python, HAProxy and PostgreSQL from Debian's packages. Needs docker and
# debootstrap, and root.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(sed -n 's/^ARG PYTHON=//p' Dockerfile)
collector=$(sed -n 's/^ *image: \(otel\/.*\)/\1/p' docker-compose.yml | sort -u)
jaeger=$(sed -n 's/^ *image: \(jaegertracing\/.*\)/\1/p' docker-compose.yml)
haproxy=$(sed -n 's/^ *image: \(haproxy:.*\)/\1/p' docker-compose.yml)
postgres=$(sed -n 's/^ *image: \(postgres:.*\)/\1/p' docker-compose.yml)
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

# Those two as their own images are, as far as docker-compose.yml uses them: the user, the directory
# of the volume, and what the entrypoint does with the variables.
debian() { # NAME, with a Dockerfile and files in $work/context
  docker build --quiet --tag "$1" "$work/context"
  rm -r "$work/context"
}
mkdir "$work/context"
cat >"$work/context/Dockerfile" <<END
FROM $python
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends haproxy \
 && groupmod --gid 99 haproxy && usermod --uid 99 haproxy
USER haproxy
ENTRYPOINT ["/usr/bin/env"]
END
debian "$haproxy"
mkdir "$work/context"
cat >"$work/context/entrypoint" <<'END'
#!/bin/sh
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  echo "$POSTGRES_PASSWORD" >/tmp/password
  initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  pg_ctl start --wait --options="-c listen_addresses=''"
  PGPASSWORD=$POSTGRES_PASSWORD createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl stop --wait
fi
exec postgres -c listen_addresses='*'
END
chmod 755 "$work/context/entrypoint"
cat >"$work/context/Dockerfile" <<END
FROM $python
RUN groupadd --gid 999 postgres && useradd --uid 999 --gid 999 postgres \
 && mkdir /etc/postgresql-common && echo create_main_cluster=false >/etc/postgresql-common/createcluster.conf \
 && apt-get update -qq && apt-get install -qq -y --no-install-recommends postgresql-15 \
 && install -d -o 999 -g 999 -m 1777 /var/lib/postgresql/data
ENV PATH=/usr/lib/postgresql/15/bin:\$PATH PGDATA=/var/lib/postgresql/data
COPY entrypoint /entrypoint
USER postgres
ENTRYPOINT ["/entrypoint"]
END
debian "$postgres"

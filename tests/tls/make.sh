#!/bin/sh
# Makes the certificates of the tests anew. They are valid for a hundred years, and guard nothing.
set -eu
cd "$(dirname "$0")"
authority() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -subj "/CN=$1" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign" \
    -keyout "$1.key" -out "$1.pem"
}
certificate() {  # name, its authority, extensions
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" \
    -keyout "$1.key" -out "$1.csr"
  printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nauthorityKeyIdentifier=keyid\n%s\n' "$3" >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$2.pem" -CAkey "$2.key" -days 36500 -extfile "$1.ext" \
    -out "$1.pem"
  rm "$1.csr" "$1.ext"
}
authority ca
authority stranger-ca
certificate server ca "extendedKeyUsage=serverAuth
subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"
certificate client ca "extendedKeyUsage=clientAuth"
certificate stranger stranger-ca "extendedKeyUsage=clientAuth"
openssl ec -aes128 -passout pass:secret -in server.key -out server-encrypted.key
rm -f ca.key stranger-ca.key ca.srl stranger-ca.srl

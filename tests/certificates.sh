#!/usr/bin/env bash
# Certificates for tests of TLS: certificates.sh FOLDER. An authority (ca.pem), a server of it that is called localhost
# (server.pem, server.key) and a client (client.pem, client.key), good for a day.
set -euo pipefail
rm -rf "$1"
mkdir -p "$1"
cd "$1"
new_key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
openssl req -x509 $new_key -subj "/CN=Transship test authority" -keyout ca.key -out ca.pem 2> log
sign() {
  openssl req $new_key -subj "/CN=$1" -keyout "$1.key" -out "$1.csr" 2>> log
  openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -out "$1.pem" -extfile <(echo "subjectAltName=DNS:$2") 2>> log
}
sign server localhost
sign client client
chmod 644 ./*.key

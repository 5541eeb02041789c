#!/bin/sh
# Makes what is missing of keys, token and password, each where only those who need it look. Started again it changes
# nothing; ended half-way it goes on where it was.
set -eu

keys=${KEYS:-/keys}

make_key() {
  [ -s "$keys/$1/$1.json" ] && return
  # The ring gets the public half first, so a key that can sign is one that is believed.
  [ -s "$keys/ring/$1.json" ] || gpuchaos keys make --role "$1" --dir "$keys/ring" --owner compose
  mv "$keys/ring/$1.json" "$keys/$1/$1.json"
}

make_secret() { # file, mode, what stands before it
  [ -s "$1" ] && return
  printf '%s%s\n' "$3" "$(python -c 'import secrets; print(secrets.token_urlsafe(24))')" >"$1.new"
  chmod "$2" "$1.new"
  mv "$1.new" "$1"
}

make_key control
make_key operator
make_secret "$keys/operator/tokens" 600 "operator:"
# Read by Grafana, which is another user; nobody else mounts its volume.
make_secret "$keys/grafana/admin-password" 444 ""
echo "keys, token and password are there"

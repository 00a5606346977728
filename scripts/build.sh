#!/usr/bin/env bash
# Builds the native module and puts the package into the environment: scripts/build.sh PIP-ARGUMENTS...
# A module made of sources from different moments crashes in ways that no source explains, and two things lead there:
# two builds at once lose each other's notes on which headers a source includes, and a header that is saved while a
# source is compiled is older than the object although the object does not know it. Hence the lock and the loop.
set -eu
python=${PYTHON:-.venv/bin/python}
mkdir -p build
exec 9>build/.lock
flock 9
while :; do
  touch build/.begun
  "$python" -m pip --disable-pip-version-check install -q --no-build-isolation \
    --config-settings=cmake.define.TAILCUT_WERROR="${WERROR:-OFF}" "$@" 9>&-
  changed=$(find native CMakeLists.txt -type f -newer build/.begun)
  [ -n "$changed" ] || break
  echo "build: changed meanwhile, once more:" $changed
  touch $changed
done

#!/usr/bin/env bash
# Builds the native module with the address and undefined-behaviour sanitizers into build/sanitize, apart from the one in
# use, and runs everything with it that drives the engine without a network: tests, kernels, random scenarios.
set -eu
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
cxx=${CXX:-c++}
scenarios=${SCENARIOS:-300}

mkdir -p build
exec 9>build/.lock
flock 9
cmake -S . -B build/sanitize -DTAILCUT_SANITIZE=ON -DCMAKE_BUILD_TYPE= -DPython_EXECUTABLE="$python" >/dev/null
cmake --build build/sanitize 9>&-
flock -u 9

[ ! -x build/sanitize/native_tests ] || build/sanitize/native_tests
# Python itself is not built with the sanitizers, so their libraries must come before it; what Python never frees
# is not our leak. libstdc++ is there early too, or exceptions thrown by the module would end the process.
export LD_PRELOAD="$("$cxx" -print-file-name=libasan.so) $("$cxx" -print-file-name=libubsan.so) $("$cxx" -print-file-name=libstdc++.so)"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TAILCUT_NATIVE=$(echo "$PWD"/build/sanitize/_native.*.so)
"$python" -m pytest -q -p fuzz.loader --timeout 600 tests/engine tests/native
"$python" -m fuzz.campaign --count "$scenarios"

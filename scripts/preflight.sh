#!/usr/bin/env bash
# Looks for what pip cannot bring: Python, a compiler, headers, network tools. What is missing is installed where
# that is allowed (root, apt-get); elsewhere one line says what to install. Only what the build needs is fatal.
set -u
python=${PYTHON:-python3}
cxx=${CXX:-c++}
may_install=no
[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null && may_install=yes
updated=no

# install PACKAGE: true when apt-get brought it
install() {
  [ "$may_install" = yes ] || return 1
  if [ "$updated" = no ]; then apt-get update -qq >/dev/null 2>&1; updated=yes; fi
  echo "preflight: apt-get install $1"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null 2>&1
}

# need CHECK PACKAGE WHAT: end here unless CHECK holds, now or after installing PACKAGE
need() {
  "$1" && return
  install "$2"
  "$1" && return
  echo "preflight: $3 is missing. On Debian: apt-get install $2" >&2
  exit 1
}

# want CHECK PACKAGE WHAT LOSS: as need, but only say what is lost
want() {
  "$1" && return
  install "$2"
  "$1" || echo "preflight: $3 is missing (Debian: apt-get install $2): $4" >&2
}

has_python()  { "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
has_venv()    { "$python" -c 'import venv, ensurepip' 2>/dev/null; }
has_headers() { "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null; }
has_cxx()     { echo '#include <compare>
int main() { return (1 <=> 1) != 0; }' | "$cxx" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; }
has_nft()     { PATH=$PATH:/usr/sbin:/sbin command -v nft >/dev/null; }
has_ip()      { PATH=$PATH:/usr/sbin:/sbin command -v ip >/dev/null; }
has_browser() { command -v chromium >/dev/null || command -v chromium-browser >/dev/null; }
has_ethtool() { PATH=$PATH:/usr/sbin:/sbin command -v ethtool >/dev/null; }

need has_python  python3      "Python 3.10 or newer (PYTHON=$python)"
need has_venv    python3-venv "the Python module venv with ensurepip"
need has_headers python3-dev  "Python.h"
need has_cxx     g++          "a C++20 compiler (CXX=$cxx)"
lab="tests and benchmarks in network namespaces are skipped"
want has_ip      iproute2 "ip"      "$lab"
want has_nft     nftables "nft"     "$lab"
want has_ethtool ethtool  "ethtool" "$lab"
want has_browser chromium "chromium" "the test that opens a report in a browser is skipped"

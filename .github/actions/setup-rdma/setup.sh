#!/bin/sh
# RDMA devices for the later steps of a job: installs this checkout in an environment of its own, with what its C
# libraries are built with, and builds them. No kernel module, no adapter; root only where packages of Debian are missing.
#
# PYTHON: the interpreter (default: python3). FOLDER: the environment's (default: in RUNNER_TEMP, or TMPDIR).
# WHEEL: a wheel of this package that carries the libraries, in place of this checkout: then nothing is built.
# GITHUB_PATH: the file to which the folder of its commands is added.
set -eu

checkout=$(cd "$(dirname "$0")/../../.." && pwd)
folder=${FOLDER:-${RUNNER_TEMP:-${TMPDIR:-/tmp}}/twisted_ib}

"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/pip" install -q "${WHEEL:-$checkout}[c]"
if ! "$folder/bin/ib-run" --check >/dev/null && command -v apt-get >/dev/null; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo='sudo -n'
    $sudo apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        gcc python3-dev libibverbs-dev librdmacm-dev libibumad-dev >/dev/null
fi
# A program of no RDMA, so that the libraries are built now.
"$folder/bin/ib-run" -q sh -c :
"$folder/bin/ib-run" --check
[ -z "${GITHUB_PATH:-}" ] || echo "$folder/bin" >>"$GITHUB_PATH"

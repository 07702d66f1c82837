#!/bin/sh
# install-venv.sh VENV REQUIREMENTS: makes or completes the Python environment, from the system's own Python.
set -eu
venv=$1 requirements=$2
python=/usr/bin/python3
[ -x "$python" ] || python=python3
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"

#!/bin/sh
# install-venv.sh VENV REQUIREMENTS...: makes or completes the Python environment.
#
# Safe to run at any time and by several makes at once. An environment that was cut off half-way, or whose interpreter is
# gone, is made anew; one that is complete for these very requirements is left alone (VENV/.complete-* holds their text).
set -eu

venv=$1
shift
python=/usr/bin/python3 # the distribution's own: the environment must outlive whatever stands first in PATH today
[ -x "$python" ] || python=$(command -v python3) || {
    echo "python3 is missing: install it (Debian: apt-get install python3-venv)" >&2
    exit 1
}

mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

for requirements in "$@"; do
    complete=$venv/.complete-$(basename "$requirements")
    cmp -s "$requirements" "$complete" && continue
    echo "installing the Python packages of $(basename "$requirements") into $venv"
    rm -f "$complete"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 5 -r "$requirements"
    cp "$requirements" "$complete.new"
    mv "$complete.new" "$complete"
done

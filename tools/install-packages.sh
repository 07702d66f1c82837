#!/bin/sh
# install-packages.sh PACKAGE...: installs the Debian packages that are not installed yet.
#
# Asks for root only when something is missing. RINGMASTER_SKIP_PACKAGES=1 leaves the machine alone (another distribution,
# or packages that came from elsewhere); the compiler then says what it misses.
set -eu

if [ -n "${RINGMASTER_SKIP_PACKAGES:-}" ]; then
    echo "RINGMASTER_SKIP_PACKAGES is set: not looking for packages" >&2
    exit 0
fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "this machine has no apt: install what matches the Debian packages below by its own means, then run make again" >&2
    echo "with RINGMASTER_SKIP_PACKAGES=1 in the environment" >&2
    echo "  $*" >&2
    exit 1
fi

missing=
for package in "$@"; do
    # shellcheck disable=SC2016 # ${Status} is dpkg-query's, not the shell's
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
    sudo=
elif command -v sudo >/dev/null; then
    sudo=sudo
else
    echo "these packages are missing and this user cannot install them; as root: apt-get install$missing" >&2
    exit 1
fi
echo "installing:$missing"
# shellcheck disable=SC2086 # lists of words, both of them
{
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 $missing
}

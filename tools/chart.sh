#!/usr/bin/env bash
# chart.sh lint|build VERSION OUT: checks charts/ringmaster, or makes OUT/ringmaster-VERSION.tgz and OUT/install.yaml of it.
#
# `lint` renders the chart with its defaults and with each file of charts/ringmaster/ci. helm is the one in PATH, else the one
# that the test cluster brings along. The CRD in the chart is a link to crd/trainingjob.yaml: there is one source.
set -euo pipefail
verb=$1 version=$2 out=$3
cd "$(dirname "${BASH_SOURCE[0]}")/.."
chart=charts/ringmaster
if ! command -v helm > /dev/null; then
    eval "$(python3 tests/cluster/cluster.py env)"
fi

# Says what helm says, without its remark about the link.
quietly() { "$@" 2> >(grep -v 'found symbolic link' >&2); }
render() { quietly helm template ringmaster "$chart" --namespace ringmaster-system --kube-version 1.29.0 "$@"; }

case $verb in
lint)
    quietly helm lint --quiet --strict "$chart"
    render > /dev/null
    for values in "$chart"/ci/*.yaml; do
        quietly helm lint --quiet --strict "$chart" -f "$values"
        render -f "$values" > /dev/null
    done
    ;;
build)
    mkdir -p "$out"
    rm -f "$out"/ringmaster-*.tgz
    quietly helm package "$chart" --version "$version" --app-version "$version" --destination "$out" > /dev/null
    {
        echo "# Ringmaster $version for kubectl: kubectl apply -f install.yaml. Rendered from the Helm chart with its defaults."
        printf 'apiVersion: v1\nkind: Namespace\nmetadata:\n  name: ringmaster-system\n'
        chart=$out/ringmaster-$version.tgz
        render --no-hooks --set crds.keep=false
    } > "$out/install.yaml.new"
    mv "$out/install.yaml.new" "$out/install.yaml"
    echo "$out/ringmaster-$version.tgz and $out/install.yaml"
    ;;
*)
    echo "usage: chart.sh lint|build VERSION OUT" >&2
    exit 2
    ;;
esac

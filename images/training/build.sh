#!/usr/bin/env bash
# build.sh OUT [VENV]: makes OUT/ringmaster-examples.tar, the image ringmaster-examples:1 that the manifests of examples/ name, from
# this machine's Python. (Containerfile beside this file makes it from TensorFlow's own image, where a registry can be reached.)
#
# In it: /usr/bin/python3 with its standard library, every shared library that these and TensorFlow's wheels load, a shell
# (busybox), and the programs of examples/ under /app. TensorFlow is a virtual environment at /opt/training, first in PATH. With
# VENV its packages are copied there: an image of 2 GB for any cluster. Without, the place is empty and whoever runs the image
# brings it: the nodes of the test cluster mount the checkout's own (tests/cluster/node.py).
set -euo pipefail
out=$1 venv=${2:-}
name=ringmaster-examples root=$out/ringmaster-examples
store=(buildah --storage-driver vfs --root "$PWD/$out/store" --runroot "$PWD/$out/run")
python=$(readlink -f /usr/bin/python3)
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')

rm -rf "$root"
mkdir -p "$root/usr/bin" "$root/bin" "$root$library" "$root/etc" "$root/tmp" "$root/opt/training"
chmod 1777 "$root/tmp"
install -m 755 "$python" "$root$python"
ln -sf "$(basename "$python")" "$root/usr/bin/python3"
tar -C "$library" --exclude=test --exclude=tests --exclude=idlelib --exclude=lib2to3 --exclude='config-*' --exclude=__pycache__ \
    -cf - . | tar -C "$root$library" -xf -

# What the wheels are linked with beside libc: C++, zlib; the name service of libc itself.
also=$(/sbin/ldconfig -p | awk '/x86-64/ && $1 ~ /^lib(stdc\+\+|gcc_s|gomp|z|rt|dl|pthread|resolv|nss_files|nss_dns)\.so\.[0-9]$/ { print $NF }')
# shellcheck disable=SC2086 # a list of paths without blanks
{
    ldd "$python" "$library"/lib-dynload/*.so $also | grep -o '/[^ ):]*\.so[^ ):]*'
    printf '%s\n' $also
} | grep -v '/lib-dynload/' | sort -u | while read -r file; do
    install -D -m 755 "$(readlink -f "$file")" "$root$file"
done
install -m 755 "$(command -v busybox)" "$root/bin/busybox"
for applet in sh cat echo env kill ls mkdir nslookup rm seq sleep test touch wget; do
    ln -s busybox "$root/bin/$applet"
done
echo 'root:x:0:0::/root:/bin/sh
trainer:x:65532:65532::/tmp:/bin/sh' > "$root/etc/passwd"
echo 'root:x:0:
trainer:x:65532:' > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
for program in examples/*/*.py; do
    install -D -m 644 "$program" "$root/app/$program"
done
if [ -n "$venv" ]; then # what trains, not what builds and tests
    tar -C "$venv" --exclude=__pycache__ --exclude=ziglang --exclude='*.pyc' --exclude=ruff --exclude=shellcheck -cf - . |
        tar -C "$root/opt/training" -xf -
fi
find "$root" -exec touch -h -d @0 {} +

container=$("${store[@]}" from scratch)
"${store[@]}" copy --quiet "$container" "$root" / > /dev/null
"${store[@]}" config --user 65532:65532 --workingdir /app --env PATH=/opt/training/bin:/usr/bin:/bin --env HOME=/tmp \
    --env PYTHONDONTWRITEBYTECODE=1 "$container"
rm -f "$out/$name.tar"
"${store[@]}" commit --quiet --timestamp 0 --rm "$container" "docker-archive:$out/$name.tar:$name:1" > /dev/null
rm -rf "$out/store" "$out/run"
echo "$out/$name.tar: image $name:1, $(du -sm "$root" | cut -f1) MiB unpacked"

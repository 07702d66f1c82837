#!/usr/bin/env bash
# build.sh OUT VERSION: makes OUT/ringmaster-training.tar, an image with this machine's Python, for tests and demos on the test
# cluster. Not for anybody's registry: jobs of users bring their own image.
#
# In it: /usr/bin/python3 with its standard library and every shared library that these and TensorFlow's wheels load, and a shell
# (busybox). Not in it: TensorFlow. A job mounts the virtual environment of the checkout, by hostPath at the path that it has
# here, and calls its bin/python: a layer of 1.6 GB for each node would only take time.
set -euo pipefail
out=$1 version=$2
name=ringmaster-training root=$out/ringmaster-training
store=(buildah --storage-driver vfs --root "$PWD/$out/store" --runroot "$PWD/$out/run")
python=$(readlink -f /usr/bin/python3)
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')

rm -rf "$root"
mkdir -p "$root/usr/bin" "$root/bin" "$root$library" "$root/etc" "$root/tmp"
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
find "$root" -exec touch -h -d @0 {} +

container=$("${store[@]}" from scratch)
"${store[@]}" copy --quiet "$container" "$root" / > /dev/null
"${store[@]}" config --user 65532:65532 --workingdir /tmp --env PATH=/usr/bin:/bin --env HOME=/tmp --env PYTHONDONTWRITEBYTECODE=1 "$container"
rm -f "$out/$name.tar"
"${store[@]}" commit --quiet --timestamp 0 --rm "$container" "docker-archive:$out/$name.tar:$name:$version" > /dev/null
rm -rf "$out/store" "$out/run"
echo "$out/$name.tar: image $name:$version, $(du -sm "$root" | cut -f1) MiB unpacked"

#!/usr/bin/env bash
# build.sh VERSION OUT INSTALLED: makes the sidecar's image from what `make install DESTDIR=INSTALLED PREFIX=/usr` laid out.
#
# Leaves OUT/ringmaster-sidecar.tar, an OCI archive (`docker load`, `ctr images import`, `skopeo copy oci-archive:...`). The
# same inputs give the same image: nothing in it knows the time.
set -euo pipefail
version=$1 out=$2 installed=$3
here=$(dirname "${BASH_SOURCE[0]}")

context=$out/sidecar root=$out/sidecar/root
rm -rf "$context"
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/share/ringmaster" "$root/etc" "$root/tmp"
chmod 1777 "$root/tmp"
install -s -m 755 "$installed/usr/bin/ringmaster-sidecar" "$installed/usr/bin/ringmaster-launch" "$root/usr/bin/"
cp -R "$installed/usr/lib/ringmaster" "$root/usr/lib/"
strip --strip-unneeded "$root"/usr/lib/ringmaster/*.so
cp -R "$installed/usr/share/ringmaster/python" "$root/usr/share/ringmaster/"

# The shared libraries that the sidecar was linked with, at the very paths where its loader looks.
ldd "$root/usr/bin/ringmaster-sidecar" | grep -o '/[^ )]*' | sort -u | while read -r library; do
    install -D -m 755 "$(readlink -f "$library")" "$root$library"
done
echo 'ringmaster:x:65532:65532::/tmp:/sbin/nologin' > "$root/etc/passwd"
echo 'ringmaster:x:65532:' > "$root/etc/group"
find "$root" -exec touch -h -d @0 {} +
cp "$here/sidecar.Containerfile" "$context/Containerfile"

# vfs and chroot: they work without privileges and inside containers, and one layer of a few files needs no more.
store=(buildah --storage-driver vfs --root "$PWD/$out/store" --runroot "$PWD/$out/run")
image=ringmaster-sidecar:$version
"${store[@]}" build --isolation chroot --timestamp 0 --format oci --layers=false --quiet \
    --label org.opencontainers.image.title=ringmaster-sidecar --label "org.opencontainers.image.version=$version" \
    --tag "$image" "$context" > /dev/null
rm -f "$out/ringmaster-sidecar.tar"
"${store[@]}" push --quiet "$image" "oci-archive:$out/ringmaster-sidecar.tar:$image"
"${store[@]}" rmi --all --force > /dev/null
rm -rf "$out/store" "$out/run"
echo "$out/ringmaster-sidecar.tar: $(du -sh --apparent-size "$root" | cut -f1) unpacked"

#!/usr/bin/env bash
# build.sh VERSION OUT INSTALLED: makes the images of the sidecar and the operator from what `make install DESTDIR=INSTALLED`
# laid out under /usr/local.
#
# Leaves OUT/ringmaster-sidecar.tar and OUT/ringmaster-operator.tar, docker-archives (`docker load`, `ctr images import`,
# `skopeo copy docker-archive:...`). The same inputs give the same image: nothing in it knows the time. Each image is a program,
# what it brings along and the shared libraries that it was linked with; no shell, no package manager, no root.
set -euo pipefail
version=$1 out=$2 installed=$3
limit=20   # MB unpacked
user=65532 # "nonroot", as in distroless images

# vfs and chroot: they work inside containers, and one layer of a few files needs no more.
store=(buildah --storage-driver vfs --root "$PWD/$out/store" --runroot "$PWD/$out/run")

# stand_in LIBRARY...: libraries of these names in $stubs that have the symbols which libcurl takes from them and end the program when
# one is called. Debian's libcurl speaks LDAP and RTMP too, and a quarter of the image would be what only these need (GnuTLS, SASL
# and what is behind them). lib/kube and lib/s3 let libcurl speak http and https and nothing else.
stubs=$PWD/$out/stubs
stand_in() {
    local curl library symbols version
    curl=$(ldd "$installed/usr/local/bin/ringmaster-operator" | awk '$1 ~ /^libcurl\.so/ { print $3 }')
    rm -rf "$stubs"
    mkdir -p "$stubs"
    for library in "$@"; do
        symbols=$(comm -12 <(nm -D --undefined-only "$curl" | awk '{ print $2 }' | sort) \
            <(nm -D --defined-only "$(dirname "$curl")/$library" | awk '{ sub("@@", "@", $3); print $3 }' | sort))
        version=$(grep -o '@.*' <<< "$symbols" | sort -u | tr -d @ || true) # all of one library have one, or none
        sed 's/@.*//; s/.*/void &(void);\nvoid &(void) { __builtin_trap(); }/' <<< "$symbols" > "$stubs/stub.c"
        echo "${version} { global: *; };" > "$stubs/stub.map"
        gcc -Os -shared -fPIC -nostdlib -s -Wl,-soname,"$library" -Wl,--version-script,"$stubs/stub.map" -o "$stubs/$library" "$stubs/stub.c"
    done
    rm -f "$stubs/stub.c" "$stubs/stub.map"
}

# lay_out ROOT PROGRAM: the program, its libraries at the very paths where its loader looks, and the little that a libc expects.
lay_out() {
    local root=$1 program=$2 library place
    rm -rf "$root"
    mkdir -p "$root/usr/local/bin" "$root/etc" "$root/tmp"
    chmod 1777 "$root/tmp"
    install -s -m 755 "$installed/usr/local/bin/$program" "$root/usr/local/bin/"
    LD_LIBRARY_PATH=$stubs ldd "$root/usr/local/bin/$program" | grep -o '/[^ )]*' | sort -u | while read -r library; do
        place=$library
        [[ $library != "$stubs"/* ]] || place=/lib/x86_64-linux-gnu/$(basename "$library")
        install -D -m 755 "$(readlink -f "$library")" "$root$place"
    done
    echo "ringmaster:x:$user:$user::/tmp:/sbin/nologin" > "$root/etc/passwd"
    echo "ringmaster:x:$user:" > "$root/etc/group"
    echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
}

mb() { awk -v bytes="$1" 'BEGIN { printf "%.1f", bytes / 1000000 }'; }

# build NAME: OUT/NAME.tar from OUT/NAME, an image whose entry point is /usr/local/bin/NAME.
build() {
    local name=$1 root=$out/$1 container size
    size=$(find "$root" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
    find "$root" -exec touch -h -d @0 {} +
    container=$("${store[@]}" from scratch)
    "${store[@]}" copy --quiet "$container" "$root" / > /dev/null
    "${store[@]}" config --user "$user:$user" --workingdir /tmp --entrypoint "[\"/usr/local/bin/$name\"]" \
        --label "org.opencontainers.image.title=$name" --label "org.opencontainers.image.version=$version" \
        --label org.opencontainers.image.licenses=Apache-2.0 "$container"
    rm -f "$out/$name.tar"
    "${store[@]}" commit --quiet --timestamp 0 --rm "$container" "docker-archive:$out/$name.tar:$name:$version" > /dev/null
    printf '%s/%s.tar: image %s:%s, %s MB unpacked, %s MB compressed\n' "$out" "$name" "$name" "$version" \
        "$(mb "$size")" "$(mb "$(gzip -c "$out/$name.tar" | wc -c)")"
    if ((size > limit * 1000000)); then
        echo "$out/$name.tar is above $limit MB; its largest files:" >&2
        find "$root" -type f -printf '%s %P\n' | sort -rn | sed 5q >&2
        exit 1
    fi
}

mkdir -p "$out"
stand_in librtmp.so.1 libldap-2.5.so.0 liblber-2.5.so.0
lay_out "$out/ringmaster-sidecar" ringmaster-sidecar
root=$out/ringmaster-sidecar
# Whom it trusts when checkpoints go to S3.
install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
# What the sidecar's --install and the launcher's copy into the pod's shared directory.
install -s -m 755 "$installed/usr/local/bin/ringmaster-launch" "$root/usr/local/bin/"
mkdir -p "$root/usr/local/lib" "$root/usr/local/share/ringmaster"
cp -R "$installed/usr/local/lib/ringmaster" "$root/usr/local/lib/"
strip --strip-unneeded "$root"/usr/local/lib/ringmaster/*.so
cp -R "$installed/usr/local/share/ringmaster/python" "$root/usr/local/share/ringmaster/"
build ringmaster-sidecar

lay_out "$out/ringmaster-operator" ringmaster-operator
build ringmaster-operator
rm -rf "$out/store" "$out/run" "$stubs"

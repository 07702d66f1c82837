#!/bin/sh
# Builds libringmaster_tf.so against the TensorFlow of a virtual environment, so that it loads with TensorFlow 2.15 and later
# in old images: C compiled by zig for an old glibc, and the one C++ file by the system's compiler, because the std::function
# that TensorFlow hands over is libstdc++'s and zig has libc++.
#
# usage: build-tensorflow-op.sh PYTHON ZIG TARGET OUTPUT SOURCE...
set -eu

python=$1 zig=$2 target=$3 output=$4
shift 4
work=$(dirname "$output")/tensorflow-objects
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

# Found without importing it: importing takes seconds.
tensorflow=$("$python" -c 'import importlib.util as u; print(u.find_spec("tensorflow").submodule_search_locations[0])')
include="-isystem $tensorflow/include -Iclient/c/include -Iclient/tensorflow"
warn="-Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wwrite-strings -Wvla -Wformat=2 -Wimplicit-fallthrough -Wundef -Werror"

for source in "$@"; do
    object=$work/$(basename "$source").o
    case $source in
    *.cc)
        # Nothing of it depends on a newer libstdc++ or glibc: it needs operator new and delete alone.
        ${CXX:-c++} -std=c++17 -O2 -g -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -Wall -Wextra -Werror -Iclient/tensorflow \
            -c -o "$object" "$source"
        ;;
    *)
        # shellcheck disable=SC2086
        $zig cc -target "$target" -std=gnu17 -O2 -g -fPIC -fvisibility=hidden -D_GNU_SOURCE $warn $include -c -o "$object" "$source"
        ;;
    esac
done

# By soname, so that 2.15 and later are both found; the library of the C API from where this one lies.
# shellcheck disable=SC2086
$zig cc -target "$target" -shared -Wl,-soname,libringmaster_tf.so -Wl,-rpath,'$ORIGIN' -o "$work/linked.so" "$work"/*.o \
    "$(dirname "$output")/libringmaster.so" -L"$tensorflow" -l:libtensorflow_framework.so.2 -Wl,--allow-shlib-undefined
mv "$work/linked.so" "$output"
